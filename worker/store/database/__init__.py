"""Transactions, the only commit, notifications, and locks that die with their connection."""
