"""Define Celery's entry points. Each is short: the work is elsewhere."""
