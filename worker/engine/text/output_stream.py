"""Streams a choice's text as soon as no later token can change it. Runs on the host only."""

from worker.engine.sequences.sequence import Sequence
from worker.engine.text.tokenizer import TextStream, Tokenizer
from worker.values.delta import Delta
from worker.values.outcomes import FinishReason
from worker.values.results import Choice


class OutputStream:
    """Turns one Sequence's tokens into Deltas.

    It holds back text that may be the beginning of a stop string, or an incomplete character.
    """

    __slots__ = ("_held", "_index", "_num_tokens", "_num_told", "_sequence", "_stream")

    def __init__(self, sequence: Sequence, index: int, tokenizer: Tokenizer) -> None:
        self._sequence = sequence
        self._index = index  # of the choice
        self._stream = TextStream(tokenizer)
        self._held = ""
        self._num_told = 0  # characters sent
        self._num_tokens = 0  # sent

    def push(self, token_id: int) -> Delta | None:
        """Add a token that did not end the output; return the Delta that is certain now, if any."""
        self._held += self._stream.push(token_id)
        certain = len(self._held) - _num_uncertain(self._held, self._sequence.params.stop)
        if certain <= 0:
            return None
        text, self._held = self._held[:certain], self._held[certain:]
        return self._delta(text, None)

    def close(self, choice: Choice) -> Delta:
        """Return the last Delta of a choice that has ended."""
        return self._delta(choice.text[self._num_told :], choice.finish_reason)

    def _delta(self, text: str, reason: FinishReason | None) -> Delta:
        sequence = self._sequence
        num_tokens = sequence.num_output_tokens - self._num_tokens
        logprobs = None
        if sequence.params.logprobs is not None:
            logprobs = tuple(sequence.logprobs[self._num_tokens :])
        delta = Delta(sequence.request_id, self._index, self._num_told, text, num_tokens, logprobs, reason)
        self._num_told += len(text)
        self._num_tokens += num_tokens
        return delta


def _num_uncertain(text: str, stop: tuple[str, ...]) -> int:
    """Return the length of the longest suffix of `text` that is a prefix of a stop string."""
    longest = min(len(text), max(map(len, stop), default=1) - 1)
    for length in range(longest, 0, -1):
        if any(one.startswith(text[-length:]) for one in stop):
            return length
    return 0
