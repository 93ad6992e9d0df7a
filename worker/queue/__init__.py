"""Carry Messages over Redis and Celery: hints that a row is due. Nothing here has to survive."""
