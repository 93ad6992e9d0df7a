"""Guesses the next tokens of Sequences where verifying them costs less than it saves. Knows no tensors."""
