"""Converts between text and tokens: tokenizing, grammars, stop strings, streaming. Never imports torch."""
