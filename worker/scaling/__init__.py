"""Decides how many workers a backlog needs. Knows no rows, no Postgres and no engine."""
