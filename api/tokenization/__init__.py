"""Turns texts into the tokens of the served model, and back."""
