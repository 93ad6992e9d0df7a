"""Name the readings of histograms, by labels and bucket, and compute percentiles from them."""

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Self

from worker.contract.meters import Readings

# Upper bounds of the buckets, in seconds. The last bucket, which has none, is that of everything longer.
BOUNDS = (
    *(0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0),
    *(60.0, 120.0, 300.0, 600.0, 1800.0),
    *(3600.0, 10_800.0, 43_200.0, 86_400.0),
)
BUCKETS = tuple(f"{bound:g}" for bound in (*BOUNDS, inf))
SUM = "sum"

Labels = tuple[str, ...]


def reading_name(name: str, labels: Iterable[str], part: str = "") -> str:
    """Return the name of a reading with labels; `part` is a bucket of a histogram, or its sum."""
    return "/".join((name, *labels, *([part] if part else [])))


def observed(name: str, labels: Iterable[str], seconds: float, count: int = 1) -> Readings:
    """Return the readings of `count` equal observations."""
    bucket = BUCKETS[bisect_left(BOUNDS, seconds)]
    labels = tuple(labels)
    return {reading_name(name, labels, bucket): count, reading_name(name, labels, SUM): seconds * count}


def labelled(readings: Readings, name: str) -> dict[Labels, float]:
    """Return the values of a counter by their labels, in order."""
    found = {}
    for key, value in readings.items():
        first, *labels = key.split("/")
        if first == name:
            found[tuple(labels)] = value
    return dict(sorted(found.items()))


@dataclass(frozen=True, slots=True)
class Distribution:
    """A histogram of seconds: the number of observations in each bucket, and their sum."""

    counts: tuple[float, ...]
    total_seconds: float

    @classmethod
    def of(cls, parts: Mapping[str, float]) -> Self:
        """Return the distribution with these buckets and sum."""
        return cls(tuple(parts.get(bucket, 0.0) for bucket in BUCKETS), parts.get(SUM, 0.0))

    @classmethod
    def merged(cls, several: Iterable[Self]) -> Self:
        """Return the distribution of all observations together."""
        given = list(several)
        counts = tuple(sum(column) for column in zip(*(one.counts for one in given), strict=True))
        return cls(counts or (0.0,) * len(BUCKETS), sum(one.total_seconds for one in given))

    @property
    def count(self) -> float:
        """The number of observations."""
        return sum(self.counts)

    @property
    def mean(self) -> float | None:
        """The mean in seconds; None: there is no observation."""
        return self.total_seconds / self.count if self.count else None

    def quantile(self, share: float) -> float | None:
        """Return the seconds that `share` of the observations did not exceed; None: there is no observation.

        Assumes that observations are spread evenly within a bucket, and that none exceeds the last bound.
        """
        wanted = share * self.count
        if not wanted:
            return None
        low = 0.0
        for bound, count in zip(BOUNDS, self.counts, strict=False):
            if count and wanted <= count:
                return low + (bound - low) * wanted / count
            wanted -= count
            low = bound
        return BOUNDS[-1]


def distributions(readings: Readings, name: str) -> dict[Labels, Distribution]:
    """Return the distributions of a histogram by their labels, in order."""
    parts: dict[Labels, dict[str, float]] = {}
    for labels, value in labelled(readings, name).items():
        parts.setdefault(labels[:-1], {})[labels[-1]] = value
    return {labels: Distribution.of(found) for labels, found in parts.items()}
