"""The product: a durable queue, a token-level scheduler and signed webhooks."""
