"""Definitions of all tables. Only worker.store imports them."""
