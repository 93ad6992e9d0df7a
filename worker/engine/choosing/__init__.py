"""Chooses the next token of each row, and reads what else is wanted off the rows."""
