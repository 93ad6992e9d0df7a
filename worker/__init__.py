"""Run batches on workers: a durable queue, a token-level scheduler and signed webhooks."""
