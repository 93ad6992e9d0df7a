"""Provides the `headrace` command line."""
