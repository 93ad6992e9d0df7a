"""Finds stop strings in an output and cuts its text there. Runs on the host only."""

from worker.engine.text.tokenizer import TextStream, Tokenizer
from worker.values.sampling import SamplingParams


class StopChecker:
    """Searches one Sequence's output for stop strings, token by token.

    Sequences without stop strings have no StopChecker: they are decoded once, when they end.
    """

    __slots__ = ("_min_tokens", "_num_held", "_num_tokens", "_params", "_stream", "_text")

    def __init__(self, params: SamplingParams, tokenizer: Tokenizer) -> None:
        self._params = params
        self._min_tokens = params.min_tokens
        self._stream = TextStream(tokenizer, skip_special_tokens=params.skip_special_tokens)
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

    def cut(self, text: str) -> tuple[str, str | None]:
        """Cut the whole output at its earliest stop string; return it and that string, if there was one."""
        found = self._find(text, self._num_held)
        if found is None:
            return text, None
        start, stop = found
        return text[: start + len(stop) * self._params.include_stop_str_in_output], stop

    def _find(self, text: str, num_seen: int) -> tuple[int, str] | None:
        """Return the earliest stop string that ends after the first `num_seen` characters, with its start."""
        found = ((text.find(stop, max(0, num_seen + 1 - len(stop))), stop) for stop in self._params.stop)
        return min(((index, stop) for index, stop in found if index >= 0), default=None)
