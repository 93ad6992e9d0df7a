"""Webhook endpoints, events and their deliveries over HTTP."""
