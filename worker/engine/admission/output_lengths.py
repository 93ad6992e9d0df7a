"""How long outputs are expected to become, from those of the same job that have ended."""

import math
from bisect import bisect_right, insort
from collections import OrderedDict, deque
from collections.abc import Hashable
from dataclasses import dataclass, field

WINDOW = 128  # a job's outputs that are remembered
MIN_KNOWN = 16  # the first to end are the shortest: fewer would mislead
QUANTILE = 0.75
MAX_JOBS = 256


@dataclass(slots=True)
class _Job:
    recent: deque[float] = field(default_factory=deque)  # in the order they ended
    lengths: list[float] = field(default_factory=list)  # the same, sorted; infinity: it was cut


class OutputLengths:
    """A quantile of each job's recent output lengths.

    An output cut by its limit tells only that it would have been longer, so it counts as endless: what is
    expected of the next one is then that one's own limit.
    """

    def __init__(self) -> None:
        self._jobs: OrderedDict[Hashable, _Job] = OrderedDict()  # least recently taught first

    def learn(self, job: Hashable | None, num_tokens: int, *, is_cut: bool) -> None:
        """Note an output that has ended; without a job it teaches nothing."""
        if job is None:
            return
        known = self._jobs.setdefault(job, _Job())
        self._jobs.move_to_end(job)
        if len(self._jobs) > MAX_JOBS:
            self._jobs.popitem(last=False)
        length = math.inf if is_cut else float(num_tokens)
        known.recent.append(length)
        insort(known.lengths, length)
        if len(known.recent) > WINDOW:
            known.lengths.remove(known.recent.popleft())

    def expect(self, job: Hashable | None, num_tokens: int, limit: int) -> int:
        """Return how long an output that already has `num_tokens` will become, at most `limit`."""
        known = self._jobs.get(job)
        if known is None or len(known.lengths) < MIN_KNOWN:
            return limit
        first = bisect_right(known.lengths, num_tokens)  # those that went on from here
        longer = len(known.lengths) - first
        if not longer:
            return limit
        return int(min(known.lengths[first + int(QUANTILE * longer)], limit))
