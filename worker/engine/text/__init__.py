"""Text to tokens and back: tokenizing, grammars, stop strings, streamed output. Never imports torch."""
