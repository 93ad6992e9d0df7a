"""Serves tenants over HTTP: their shares, quotas and rights."""
