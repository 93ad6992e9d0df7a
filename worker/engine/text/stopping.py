"""Finds stop strings in an output and cuts its text there. Runs on the host only."""

from worker.engine.text.tokenizer import TextStream, Tokenizer


class StopChecker:
    """Searches one Sequence's output for stop strings, token by token.

    Sequences without stop strings have no StopChecker: they are decoded once, when they end.
    """

    __slots__ = ("_min_tokens", "_num_held", "_num_tokens", "_stop", "_stream", "_text")

    def __init__(
        self,
        stop: tuple[str, ...],
        min_tokens: int,
        tokenizer: Tokenizer,
        *,
        skip_special_tokens: bool = True,
    ) -> None:
        self._stop = stop
        self._min_tokens = min_tokens
        self._stream = TextStream(tokenizer, skip_special_tokens=skip_special_tokens)
        self._text = ""
        self._num_tokens = 0
        self._num_held = 0  # characters of the first `min_tokens - 1` tokens

    def push(self, token_id: int) -> bool:
        """Add a token; return whether a stop string is now complete."""
        new_text = self._stream.push(token_id)
        self._text += new_text
        self._num_tokens += 1
        if self._num_tokens < self._min_tokens:
            self._num_held = len(self._text)
            return False
        return bool(new_text) and self._find(self._text, len(self._text) - len(new_text)) is not None

    def cut(self, text: str) -> tuple[str, bool]:
        """Cut the whole output before its earliest stop string; return it and whether there was one."""
        index = self._find(text, self._num_held)
        return (text, False) if index is None else (text[:index], True)

    def _find(self, text: str, num_seen: int) -> int | None:
        """Return the start of the earliest stop string that ends after the first `num_seen` characters."""
        found = [text.find(stop, max(0, num_seen + 1 - len(stop))) for stop in self._stop]
        return min((index for index in found if index >= 0), default=None)
