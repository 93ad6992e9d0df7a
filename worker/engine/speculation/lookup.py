"""Guesses that tokens go on as they did where the same tokens stood before: in the Sequence or in its job.

Where a grammar leaves only one text to follow, that is guessed. Source of the rest: prompt lookup (Saxena,
2023), with an index that grows token by token.
"""

from collections import OrderedDict
from collections.abc import Hashable
from collections.abc import Sequence as Items

import numpy as np

from worker.engine.sequences.grammar_matcher import GrammarMatcher
from worker.engine.sequences.sequence import Sequence, SequenceState
from worker.engine.speculation.proposer import NO_GUESS, GuessedTokens, Kind

RUNS = (4, 2, 1)  # tokens that have to be equal; the longest match is tried first
# How far a match is followed back, and the lengths that count as kinds of their own.
MOST_EQUAL, LENGTHS = 16, (16, 8, 4, 3, 2, 1)
# By the number of equal tokens: of LENGTHS and of RUNS, the longest within it.
LENGTH_WITHIN, RUN_WITHIN = (
    [0, *(max(length for length in lengths if length <= equal) for equal in range(1, MOST_EQUAL + 1))]
    for lengths in (LENGTHS, RUNS)
)
# A run is steady if one token followed it the last times; a single token that is not steady says nothing.
STEADY, MOST_STEADY = 2, 3
MAX_TOKENS = 1 << 17  # of outputs that are remembered
MAX_JOB_TOKENS = 1 << 15  # of one job
MAX_NEW_TOKENS = 1 << 10  # of a job, taken in at once; of more, the latest
MANY, LONG = 32, 1_024  # tokens
END = -1  # between two outputs; no token
FORCED: Kind = ("grammar", None)


class TokenIndex:
    """Finds where the latest tokens of a list stood before. The list may grow at its end only."""

    __slots__ = ("_begin", "_ends", "_num_indexed", "_steady", "token_ids")

    def __init__(self, token_ids: list[int]) -> None:
        self.token_ids = token_ids
        # The latest end of each run of tokens that another one follows.
        self._ends: dict[tuple[int, ...], int] = {}
        # How many times in a row the following token was the same as before, if it was.
        self._steady: dict[tuple[int, ...], int] = {}
        self._num_indexed = 0
        # A long beginning is no part of these, but searched: to index it takes longer than many Steps.
        self._begin: np.ndarray | None = None

    def find(self, latest: Items[int], most_new: int | None = None) -> tuple[int, int, int]:
        """Return the end of the longest match of `latest`, its length, and how steady its next token is.

        The list may be `latest` itself: its last tokens are not their own match. Without one, all are 0. Of
        tokens that are new in the list, only the last `most_new` are known from then on.
        """
        if most_new is not None:
            self._num_indexed = max(self._num_indexed, len(self.token_ids) - most_new)
        elif not self._num_indexed and len(self.token_ids) > MANY:
            self._index_at_once()
        self._index()
        for length in RUNS:
            run = tuple(latest[-length:])
            end, steady = self._ends.get(run), self._steady.get(run, 0)
            if end is None and self._begin is not None and length > 1:
                end = _last_end(self._begin, run)
            if end is not None and (length > 1 or steady >= STEADY):
                return end, self._num_equal(end, latest, length), steady
        return 0, 0, 0

    def after(self, end: int, length: int, count: int) -> GuessedTokens:
        """Return up to `count` tokens that follow a match; past the list's end it repeats what it found.

        Their kind is how many tokens before each are equal, roughly, and how steadily it follows them.
        """
        known = self.token_ids
        token_ids: list[int] = []
        kinds: list[Kind] = []
        period = len(known) - end
        for index in range(count):
            place = end + index % period
            token_id = known[place]
            if token_id == END:
                break
            num_equal = min(length + index, MOST_EQUAL)
            run = tuple(known[place - RUN_WITHIN[num_equal] : place])
            steady = self._steady.get(run, 0)
            if steady and known[self._ends[run]] != token_id:
                steady = 0
            token_ids.append(token_id)
            kinds.append(("lookup", (LENGTH_WITHIN[num_equal], steady)))
        return GuessedTokens(tuple(token_ids), tuple(kinds))

    def _index(self) -> None:
        token_ids, ends, steady = self.token_ids, self._ends, self._steady
        for end in range(self._num_indexed + 1, len(token_ids)):
            token_id = token_ids[end]
            for length in RUNS:
                if length > end:
                    continue
                run = tuple(token_ids[end - length : end])
                before = ends.get(run)
                ends[run] = end
                if before is None:
                    continue
                if token_ids[before] == token_id:
                    steady[run] = min(steady.get(run, 0) + 1, MOST_STEADY)
                else:
                    steady.pop(run, None)
        self._num_indexed = max(self._num_indexed, len(token_ids) - 1)

    def _index_at_once(self) -> None:
        """Index a beginning fast, without what is steady in it; a long one is only kept, to be searched."""
        stop = len(self.token_ids)
        for length in RUNS if stop < LONG else ():
            shifted = (self.token_ids[shift : stop - length + shift] for shift in range(length))
            self._ends.update(zip(zip(*shifted, strict=True), range(length, stop), strict=True))
        if stop >= LONG:
            self._begin = np.array(self.token_ids)
        self._num_indexed = stop - 1

    def _num_equal(self, end: int, latest: Items[int], known: int) -> int:
        most = min(MOST_EQUAL, end, len(latest))
        while known < most and self.token_ids[end - known - 1] == latest[-known - 1]:
            known += 1
        return known


class LookupProposer:
    """Proposes what followed the longest match in the Sequence itself or in earlier outputs of its job."""

    seconds_per_pass = None
    shares = None

    def __init__(self) -> None:
        self._own: dict[Sequence, TokenIndex] = {}
        self._jobs: OrderedDict[Hashable, TokenIndex] = OrderedDict()
        self._num_tokens = 0  # in all of them

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
            self._num_tokens -= 0 if index is None else len(index.token_ids)
            index = self._jobs[sequence.job] = TokenIndex([])
        index.token_ids += sequence.token_ids[sequence.num_prompt_tokens :]
        index.token_ids.append(END)
        self._num_tokens += sequence.num_output_tokens + 1
        self._jobs.move_to_end(sequence.job)
        while self._num_tokens > MAX_TOKENS and len(self._jobs) > 1:
            _, oldest = self._jobs.popitem(last=False)
            self._num_tokens -= len(oldest.token_ids)

    def _propose(self, sequence: Sequence, limit: int) -> GuessedTokens:
        if sequence.matcher is None:
            return self._find(sequence, sequence.token_ids, limit)
        return self._in_grammar(sequence, sequence.matcher, limit)

    def _in_grammar(self, sequence: Sequence, matcher: GrammarMatcher, limit: int) -> GuessedTokens:
        """Return what the grammar forces, what was found after that as far as it is allowed, and so on."""
        token_ids: tuple[int, ...] = ()
        kinds: tuple[Kind, ...] = ()
        while (room := limit - len(token_ids)) > 0:
            forced = tuple(matcher.forced(token_ids)[:room])
            token_ids += forced
            kinds += (FORCED,) * len(forced)
            found = self._find(sequence, [*sequence.token_ids, *token_ids], room - len(forced))
            count = matcher.num_allowed((*token_ids, *found.token_ids)) - len(token_ids)
            token_ids += found.token_ids[:count]
            kinds += found.kinds[:count]
            if count == len(found.token_ids) or not (forced or count):
                break
        return GuessedTokens(token_ids, kinds)

    def _find(self, sequence: Sequence, latest: Items[int], limit: int) -> GuessedTokens:
        """Return a guess for a Sequence whose tokens may be followed by others already."""
        own = self._own.get(sequence)
        if own is None:
            own = self._own[sequence] = TokenIndex(sequence.token_ids)
        index, (end, length, steady) = own, own.find(latest)
        shared = self._jobs.get(sequence.job)
        if shared is not None and length < MOST_EQUAL:
            found = shared.find(latest, MAX_NEW_TOKENS)
            if found[1:] > (length, steady):
                index, (end, length, steady) = shared, found
        return index.after(end, length, limit) if length else NO_GUESS


def _last_end(token_ids: np.ndarray, run: tuple[int, ...]) -> int | None:
    """Return the latest end of a run that another token follows; None: it is not there."""
    length, stop = len(run), len(token_ids) - 1
    is_here = token_ids[length - 1 : stop] == run[-1]
    for back in range(1, length):
        is_here &= token_ids[length - 1 - back : stop - back] == run[-1 - back]
    places = np.flatnonzero(is_here)
    return int(places[-1]) + length if len(places) else None


def _has_ended(sequence: Sequence) -> bool:
    return sequence.state is SequenceState.FINISHED
