"""Serves webhook endpoints, events and their deliveries over HTTP."""
