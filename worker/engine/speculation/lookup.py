"""Guesses that tokens go on as they did where the same tokens stood before: in the Sequence or in its job.

Source: prompt lookup (Saxena, 2023), with an index that grows token by token.
"""

from collections import OrderedDict
from collections.abc import Hashable
from collections.abc import Sequence as Items

from worker.engine.sequences.sequence import Sequence, SequenceState
from worker.engine.speculation.proposer import NO_GUESS, GuessedTokens

LONG, SHORT = 4, 2  # tokens that have to be equal; the long match is tried first
# How far a match is followed back, and the lengths that count as kinds of their own.
MOST_EQUAL, KINDS = 16, (16, 8, 4, 3, 2)
MAX_JOB_TOKENS = 1 << 16  # outputs of a job that are remembered
MAX_JOBS = 32
END = -1  # between two outputs; no token


class TokenIndex:
    """Finds where the latest tokens of a list stood before. The list may grow at its end only."""

    __slots__ = ("_ends", "_num_indexed", "token_ids")

    def __init__(self, token_ids: list[int]) -> None:
        self.token_ids = token_ids
        # The latest end of each run of SHORT or LONG tokens that ends within the first `_num_indexed` tokens.
        self._ends: dict[tuple[int, ...], int] = {}
        self._num_indexed = 0

    def find(self, latest: Items[int], *, is_own: bool) -> tuple[int, int]:
        """Return the end of the longest match of `latest`, and the match's length; 0 and 0 if there is none.

        `is_own`: `latest` is the list itself, so its last tokens are not their own match.
        """
        self._index(len(self.token_ids) - is_own)
        for length in (LONG, SHORT):
            end = self._ends.get(tuple(latest[-length:]))
            if end is not None:
                return end, self._num_equal(end, latest, length)
        return 0, 0

    def after(self, end: int, count: int) -> tuple[int, ...]:
        """Return up to `count` tokens that follow a match; past the list's end it repeats what it found."""
        found = self.token_ids[end : end + count]
        if END in found:
            found = found[: found.index(END)]
        elif found and len(found) < count:
            found = (found * (count // len(found) + 1))[:count]
        return tuple(found)

    def _index(self, stop: int) -> None:
        token_ids, ends = self.token_ids, self._ends
        for end in range(max(self._num_indexed + 1, SHORT), stop + 1):
            ends[tuple(token_ids[end - SHORT : end])] = end
            if end >= LONG:
                ends[tuple(token_ids[end - LONG : end])] = end
        self._num_indexed = max(self._num_indexed, stop)

    def _num_equal(self, end: int, latest: Items[int], known: int) -> int:
        most = min(MOST_EQUAL, end, len(latest))
        while known < most and self.token_ids[end - known - 1] == latest[-known - 1]:
            known += 1
        return known


class LookupProposer:
    """Proposes what followed the longest match in the Sequence itself or in earlier outputs of its job."""

    name = "lookup"
    seconds_per_pass = None

    def __init__(self) -> None:
        self._own: dict[Sequence, TokenIndex] = {}
        self._jobs: OrderedDict[Hashable, TokenIndex] = OrderedDict()

    def propose(self, sequences: Items[Sequence], limits: Items[int]) -> list[GuessedTokens]:
        """Return a guess for each Sequence, of at most so many tokens; an empty one without a match."""
        if len(self._own) > 2 * len(sequences) + 64:  # some were cancelled
            self._own = {one: index for one, index in self._own.items() if not _has_ended(one)}
        return [self._propose(one, limit) for one, limit in zip(sequences, limits, strict=True)]

    def ended(self, sequence: Sequence) -> None:
        """Remember the output for its job."""
        self._own.pop(sequence, None)
        if sequence.job is None:
            return
        index = self._jobs.get(sequence.job)
        if index is None or len(index.token_ids) > MAX_JOB_TOKENS:
            index = self._jobs[sequence.job] = TokenIndex([])
        index.token_ids += sequence.token_ids[sequence.num_prompt_tokens :]
        index.token_ids.append(END)
        self._jobs.move_to_end(sequence.job)
        if len(self._jobs) > MAX_JOBS:
            self._jobs.popitem(last=False)

    def _propose(self, sequence: Sequence, limit: int) -> GuessedTokens:
        own = self._own.get(sequence)
        if own is None:
            own = self._own[sequence] = TokenIndex(sequence.token_ids)
        index, (end, length) = own, own.find(sequence.token_ids, is_own=True)
        shared = self._jobs.get(sequence.job)
        if shared is not None and length < MOST_EQUAL:
            other_end, other_length = shared.find(sequence.token_ids, is_own=False)
            if other_length > length:
                index, end, length = shared, other_end, other_length
        token_ids = index.after(end, limit) if length else ()
        if not token_ids:
            return NO_GUESS
        return GuessedTokens(token_ids, next(kind for kind in KINDS if kind <= length))


def _has_ended(sequence: Sequence) -> bool:
    return sequence.state is SequenceState.FINISHED
