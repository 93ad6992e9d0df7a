"""Predicts output lengths from earlier outputs of the same job."""

import math
from bisect import bisect_right, insort
from collections import OrderedDict, deque
from collections.abc import Hashable
from dataclasses import dataclass, field

WINDOW = 128  # ended outputs remembered of each job
FIRST_GUESS = 32  # tokens
MAX_JOBS = 256


@dataclass(slots=True)
class _Job:
    recent: deque[float] = field(default_factory=deque)  # in the order of their ends
    lengths: list[float] = field(default_factory=list)  # the same, sorted; infinity: cut by its limit


class OutputLengths:
    """Predicts an output's length: the median of its job's recent outputs that became longer than it is now.

    Without any, twice its current length, but at least FIRST_GUESS. An output cut by its limit would have
    become longer, so it counts as endless; if it is the median, the prediction is the next one's own limit.
    """

    def __init__(self) -> None:
        self._jobs: OrderedDict[Hashable, _Job] = OrderedDict()  # least recently updated first

    def learn(self, job: Hashable, num_tokens: int, *, is_cut: bool) -> None:
        """Record the length of an output that has ended."""
        known = self._jobs.setdefault(job, _Job())
        self._jobs.move_to_end(job)
        if len(self._jobs) > MAX_JOBS:
            self._jobs.popitem(last=False)
        length = math.inf if is_cut else float(num_tokens)
        known.recent.append(length)
        insort(known.lengths, length)
        if len(known.recent) > WINDOW:
            known.lengths.remove(known.recent.popleft())

    def is_known(self, job: Hashable) -> bool:
        """Return whether an output of the job has ended."""
        return job in self._jobs

    def expect(self, job: Hashable, num_tokens: int, limit: int) -> int:
        """Return the expected final length, at most `limit`, of an output that has `num_tokens` now."""
        lengths = self._jobs[job].lengths if self.is_known(job) else []
        first = bisect_right(lengths, num_tokens)  # of those that became longer than this
        if first == len(lengths):
            return min(max(FIRST_GUESS, 2 * num_tokens), limit)
        return int(min(lengths[(first + len(lengths)) // 2], limit))
