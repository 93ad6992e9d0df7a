"""Run Postgres and Redis from wheels as child processes, and restart them when they die."""
