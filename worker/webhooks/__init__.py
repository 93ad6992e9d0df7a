"""Sign and send webhooks. Must not know Celery or tables."""
