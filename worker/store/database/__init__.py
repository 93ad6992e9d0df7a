"""Provide transactions with the only commit, notifications, and locks that die with their connection."""
