"""Defines the commands, one module per noun."""
