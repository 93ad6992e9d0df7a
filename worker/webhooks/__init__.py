"""Signing and sending webhooks. Knows no Celery and no database."""
