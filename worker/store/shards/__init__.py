"""Shards: tickets, claims, saves, fair shares between tenants."""
