"""The audit log, for administrators."""
