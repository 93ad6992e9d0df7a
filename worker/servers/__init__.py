"""Postgres and Redis from wheels, each a child of ours that is started again when it dies."""
