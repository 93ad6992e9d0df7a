"""Tickets, claims, saves and releases of Shards, and fair shares between tenants."""
