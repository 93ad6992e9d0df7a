"""Tenants, their keys and quotas, and what was done with keys."""
