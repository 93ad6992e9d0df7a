"""How long outputs are expected to become, from what those of the same job have shown so far."""

import math
from bisect import bisect_right, insort
from collections import OrderedDict, deque
from collections.abc import Hashable
from dataclasses import dataclass, field

WINDOW = 128  # a job's ended outputs that are remembered
FIRST_GUESS = 32  # tokens
MAX_JOBS = 256


@dataclass(slots=True)
class _Job:
    recent: deque[float] = field(default_factory=deque)  # in the order they ended
    lengths: list[float] = field(default_factory=list)  # the same, sorted; infinity: it was cut


class OutputLengths:
    """The median of each job's recent output lengths; where none tells, twice what there is already.

    An output cut by its limit tells only that it would have been longer, so it counts as endless: what is
    expected of the next one is then that one's own limit.
    """

    def __init__(self) -> None:
        self._jobs: OrderedDict[Hashable, _Job] = OrderedDict()  # least recently heard of first

    def learn(self, job: Hashable, num_tokens: int, *, is_cut: bool) -> None:
        """Note an output that has ended."""
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
        """Whether an output of the job has ended."""
        return job in self._jobs

    def expect(self, job: Hashable, num_tokens: int, limit: int) -> int:
        """Return how long an output that already has `num_tokens` becomes, at most `limit`."""
        lengths = self._jobs[job].lengths if self.is_known(job) else []
        first = bisect_right(lengths, num_tokens)  # those that went on from here
        if first == len(lengths):
            return min(max(FIRST_GUESS, 2 * num_tokens), limit)
        return int(min(lengths[(first + len(lengths)) // 2], limit))
