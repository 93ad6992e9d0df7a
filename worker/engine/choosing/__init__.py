"""Chooses the next token of each output row, and feeds readouts from the other rows."""
