"""Postgres, the truth. Knows SQL and the contract; knows no Redis, Celery, HTTP or engine."""
