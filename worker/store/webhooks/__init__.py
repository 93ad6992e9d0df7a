"""Webhook endpoints, events and deliveries as rows."""
