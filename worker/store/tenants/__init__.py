"""Store tenants, their API keys and quotas, and the audit log."""
