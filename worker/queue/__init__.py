"""Redis and Celery: a hint that a row is due. Nothing here has to survive."""
