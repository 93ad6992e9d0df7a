"""A streamed choice's text, told as soon as nothing can take it back. Host work only."""

from worker.engine.requests.generation import Choice, Delta, FinishReason
from worker.engine.sequences.sequence import Sequence
from worker.engine.text.tokenizer import TextStream, Tokenizer


class OutputStream:
    """Turns one Sequence's tokens into Deltas.

    Text that may be the beginning of a stop string, or of a character, is held back until it is certain.
    """

    __slots__ = ("_held", "_index", "_num_tokens", "_num_told", "_sequence", "_stream")

    def __init__(self, sequence: Sequence, index: int, tokenizer: Tokenizer) -> None:
        self._sequence = sequence
        self._index = index  # of the choice
        self._stream = TextStream(tokenizer)
        self._held = ""
        self._num_told = 0  # characters
        self._num_tokens = 0  # told

    def push(self, token_id: int) -> Delta | None:
        """Take a token that did not end the output; return what can be told now."""
        self._held += self._stream.push(token_id)
        certain = len(self._held) - _num_uncertain(self._held, self._sequence.params.stop)
        if certain <= 0:
            return None
        text, self._held = self._held[:certain], self._held[certain:]
        return self._delta(text, None)

    def close(self, choice: Choice) -> Delta:
        """Return what is left of a choice that has ended."""
        return self._delta(choice.text[self._num_told :], choice.finish_reason)

    def _delta(self, text: str, reason: FinishReason | None) -> Delta:
        sequence = self._sequence
        first = sequence.num_prompt_tokens + self._num_tokens
        token_ids = tuple(sequence.token_ids[first:])
        logprobs = None
        if sequence.params.logprobs is not None:
            logprobs = tuple(sequence.logprobs[self._num_tokens :])
        delta = Delta(sequence.request_id, self._index, self._num_told, text, token_ids, logprobs, reason)
        self._num_told += len(text)
        self._num_tokens += len(token_ids)
        return delta


def _num_uncertain(text: str, stop: tuple[str, ...]) -> int:
    """Return how long the longest end of `text` is that a stop string begins with."""
    longest = min(len(text), max(map(len, stop), default=1) - 1)
    for length in range(longest, 0, -1):
        if any(one.startswith(text[-length:]) for one in stop):
            return length
    return 0
