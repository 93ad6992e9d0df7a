"""Store webhook endpoints, events and deliveries as rows."""
