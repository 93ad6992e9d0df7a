"""How long outputs are expected to become, from what those of the same job have shown so far."""

import math
from bisect import bisect_right, insort
from collections import OrderedDict, deque
from collections.abc import Hashable
from dataclasses import dataclass, field

WINDOW = 128  # a job's ended outputs that are remembered
MIN_KNOWN = 16  # the first to end are the shortest: fewer would mislead
QUANTILE = 0.75
FIRST_GUESS = 32  # tokens
MAX_JOBS = 256


@dataclass(slots=True)
class _Job:
    recent: deque[float] = field(default_factory=deque)  # in the order they ended
    lengths: list[float] = field(default_factory=list)  # the same, sorted; infinity: it was cut
    longest: int = 0  # that was seen, ended or not


class OutputLengths:
    """A quantile of each job's recent output lengths; until enough have ended, a guess that grows with them.

    An output cut by its limit tells only that it would have been longer, so it counts as endless: what is
    expected of the next one is then that one's own limit.
    """

    def __init__(self) -> None:
        self._jobs: OrderedDict[Hashable, _Job] = OrderedDict()  # least recently heard of first

    def observe(self, job: Hashable, num_tokens: int) -> None:
        """Note how long an output is by now."""
        known = self._job(job)
        known.longest = max(known.longest, num_tokens)

    def learn(self, job: Hashable, num_tokens: int, *, is_cut: bool) -> None:
        """Note an output that has ended."""
        known = self._job(job)
        length = math.inf if is_cut else float(num_tokens)
        known.recent.append(length)
        insort(known.lengths, length)
        if len(known.recent) > WINDOW:
            known.lengths.remove(known.recent.popleft())

    def is_known(self, job: Hashable) -> bool:
        """Whether enough outputs of the job have ended to tell."""
        known = self._jobs.get(job)
        return known is not None and len(known.lengths) >= MIN_KNOWN

    def expect(self, job: Hashable, num_tokens: int, limit: int) -> int:
        """Return how long an output that already has `num_tokens` becomes, at most `limit`."""
        known = self._jobs.get(job)
        if known is None or len(known.lengths) < MIN_KNOWN:
            seen = max(num_tokens, known.longest if known else 0)
            return min(max(FIRST_GUESS, 2 * seen), limit)
        first = bisect_right(known.lengths, num_tokens)  # those that went on from here
        longer = len(known.lengths) - first
        if not longer:
            return limit
        return int(min(known.lengths[first + int(QUANTILE * longer)], limit))

    def _job(self, job: Hashable) -> _Job:
        known = self._jobs.setdefault(job, _Job())
        self._jobs.move_to_end(job)
        if len(self._jobs) > MAX_JOBS:
            self._jobs.popitem(last=False)
        return known
