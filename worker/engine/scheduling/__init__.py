"""Decides which Sequences share the next Step and which Blocks they hold. Never imports torch."""
