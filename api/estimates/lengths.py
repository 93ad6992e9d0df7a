"""How long outputs will be, by those of recent batches."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

# Of the batches that were looked at, the share that may lie below the range, and above it.
TAIL = 0.1


@dataclass(frozen=True, slots=True)
class Range:
    """A guess, and what it lies between."""

    low: float
    expected: float
    high: float

    def __add__(self, other: "Range") -> "Range":
        return Range(self.low + other.low, self.expected + other.expected, self.high + other.high)

    def __mul__(self, other: "Range") -> "Range":
        return Range(self.low * other.low, self.expected * other.expected, self.high * other.high)


def spread(values: Iterable[float]) -> Range:
    """Return mean and range of at least one value, without the outermost where there are many."""
    ordered = sorted(values)
    cut = int(TAIL * len(ordered))
    return Range(ordered[cut], fmean(ordered), ordered[-1 - cut])


@dataclass(frozen=True, slots=True)
class SeenBatch:
    """Output lengths of one batch. An output that its limit cut counts as endless."""

    lengths: Sequence[int]  # of those that ended by themselves, sorted
    num_cut: int

    def expect(self, limit: int) -> float:
        """Return the mean length of outputs like these under another limit."""
        num_within = bisect_right(self.lengths, limit)
        num_over = len(self.lengths) - num_within + self.num_cut
        return (sum(self.lengths[:num_within]) + limit * num_over) / (len(self.lengths) + self.num_cut)


class LearnedLengths:
    """What recent batches say of the next one."""

    def __init__(self, seen: Iterable[Sequence[int | None]]) -> None:
        self._batches = [
            SeenBatch(sorted(length for length in batch if length is not None), batch.count(None))
            for batch in seen
        ]

    @property
    def num_batches(self) -> int:
        """How many batches it was learned from."""
        return len(self._batches)

    def expect(self, limits: Iterable[int]) -> Range:
        """Return how many tokens requests with these limits generate together."""
        by_limit = Counter(limits)
        if not self._batches:  # at least a token each, at most all they may
            most = float(sum(limit * count for limit, count in by_limit.items()))
            return Range(float(by_limit.total()), most, most)
        return spread(
            sum(batch.expect(limit) * count for limit, count in by_limit.items()) for batch in self._batches
        )
