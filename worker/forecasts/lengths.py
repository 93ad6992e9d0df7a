"""Predicts output lengths from recent batches and from the same batch's ended outputs.

A limit that cuts an output hides the length that it would have reached, so lengths are a survival curve
(Kaplan and Meier 1958): of the outputs that reached a length, the share that went on. A batch's own curve is
the usual one with its hazard times a factor: how much more often its outputs end than those of past batches.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import exp, log, log2, sqrt

from worker.forecasts.ranges import DEVIATIONS, Range
from worker.store.watching.outlook import SeenOutput

# The prior standard deviation of the logarithm of a batch's factor on the usual hazard; it weighs as much as
# one batch.
FIRST_DEVIATION = 0.7
# The approximate number of points of a curve.
CURVE_POINTS = 48
LEAST_SHARE = 1e-9
# The least deviation: batches are never assumed to be more alike.
LEAST_DEVIATION = 0.1


@dataclass(frozen=True, slots=True)
class Curve:
    """The rising lengths at which outputs end, and the cumulative hazard at each: -log of the share left."""

    lengths: Sequence[float]
    hazards: Sequence[float]

    def hazard(self, length: float) -> float:
        """Return the cumulative hazard at a length."""
        index = bisect_right(self.lengths, length)
        return self.hazards[index - 1] if index else 0.0

    def expect(self, limit: float, *, factor: float = 1.0, begun: float = 0.0) -> tuple[float, float]:
        """Return mean and variance of the tokens still to come of an output that has `begun` tokens.

        `factor` multiplies the hazard.
        """
        index = bisect_right(self.lengths, begun)
        before = self.hazards[index - 1] if index else 0.0
        at, alive, mean, squares = begun, 1.0, 0.0, 0.0
        while True:
            ends_at = min(self.lengths[index], limit) if index < len(self.lengths) else limit
            mean += alive * (ends_at - at)
            squares += alive * ((ends_at - begun) ** 2 - (at - begun) ** 2)
            if ends_at >= limit or alive < LEAST_SHARE:
                return mean, max(0.0, squares - mean**2)
            at = ends_at
            alive = exp(-factor * (self.hazards[index] - before))
            index += 1

    def survives(self, length: float, *, factor: float = 1.0) -> float:
        """Return the share of outputs that become longer than `length`."""
        return exp(-factor * self.hazard(length))


def even_curve(limit: float, hazard: float) -> Curve:
    """Return the curve of a constant hazard: an output is as likely to end after any of its tokens."""
    lengths = [limit * (index + 1) / CURVE_POINTS for index in range(CURVE_POINTS)]
    return Curve(lengths, [hazard * length for length in lengths])


class LearnedLengths:
    """The output lengths that recent batches predict for the next one."""

    def __init__(self, seen: Iterable[Sequence[SeenOutput]]) -> None:
        self._batches = [batch for batch in seen if batch]
        self._curves: dict[int, tuple[Curve, float]] = {}

    @property
    def num_batches(self) -> int:
        """The number of batches that the lengths were learned from."""
        return len(self._batches)

    def curve(self, limit: float) -> tuple[Curve, float]:
        """Return the curve for outputs with this limit, and the deviation of the log of a batch's factor.

        Outputs with a similar limit weigh more, because another limit is often another kind of work.
        """
        size = round(2 * log2(max(limit, 1.0)))
        if size not in self._curves:
            self._curves[size] = self._learn(size / 2)
        return self._curves[size]

    def expect(self, limits: Iterable[int]) -> Range:
        """Return how many tokens requests with these limits generate together."""
        by_limit = Counter(limits)
        most = float(sum(limit * count for limit, count in by_limit.items()))
        least = float(by_limit.total())  # a token each
        if not self._batches:
            return Range(least, most, most)
        total = Range(0.0, 0.0, 0.0)
        variance = 0.0
        for limit, count in by_limit.items():
            curve, deviation = self.curve(limit)
            doubt = exp(DEVIATIONS * deviation)
            mean, scatter = curve.expect(limit)
            low, high = (curve.expect(limit, factor=factor)[0] for factor in (doubt, 1 / doubt))
            total = Range(total.low + count * low, total.expected + count * mean, total.high + count * high)
            variance += count * scatter
        return within(total, variance, least, most)

    def at_limit(self, limits: Iterable[int]) -> float:
        """Return how many requests with these limits are expected to be cut by them."""
        counts = Counter(limits).items()
        # An output that ends with its last possible token is not cut.
        return sum(count * self.curve(limit)[0].survives(limit - 0.5) for limit, count in counts)

    def _learn(self, size: float) -> tuple[Curve, float]:
        ends: Counter[int] = Counter()
        leaves: Counter[int] = Counter()
        for batch in self._batches:
            for one in batch:
                weight = 1 / (1 + (log2(max(one.limit, 1)) - size) ** 2)
                leaves[one.num_tokens] += weight  # type: ignore[assignment]
                if not one.is_cut:
                    ends[one.num_tokens] += weight  # type: ignore[assignment]
        curve = _curve(ends, leaves)
        return curve, self._deviation(curve, size)

    def _deviation(self, curve: Curve, size: float) -> float:
        total, squares = 1.0, FIRST_DEVIATION**2
        for batch in self._batches:
            num_ends = sum(not one.is_cut for one in batch)
            usual = sum(curve.hazard(one.num_tokens) for one in batch)
            weight = 1 / (1 + (log2(max(batch[0].limit, 1)) - size) ** 2)
            factor = (num_ends + 1) / (usual + 1)
            total += weight
            # Subtract the scatter that a small count has by itself.
            squares += weight * max(0.0, log(factor) ** 2 - 1 / (max(num_ends, usual) + 1))
        return sqrt(squares / total)


def within(total: Range, variance: float, least: float, most: float) -> Range:
    """Return a total widened by the variance of its parts, and limited to `least` and `most`."""
    deviation = DEVIATIONS * sqrt(variance)
    low = total.expected - sqrt((total.expected - total.low) ** 2 + deviation**2)
    high = total.expected + sqrt((total.high - total.expected) ** 2 + deviation**2)
    expected = min(max(total.expected, least), most)
    return Range(min(max(low, least), expected), expected, max(min(high, most), expected))


def _curve(ends: "Counter[int]", leaves: "Counter[int]") -> Curve:
    at_risk = float(leaves.total())
    points: list[tuple[float, float]] = []
    hazard = 0.0
    step = ends.total() / CURVE_POINTS
    pending = 0.0
    for length in sorted(leaves):
        if ends[length]:
            # Half an output more is assumed to go on; without it the last end would have an infinite hazard.
            hazard -= log(1 - ends[length] / (at_risk + 0.5))
            pending += ends[length]
            if pending >= step:
                points.append((float(length), hazard))
                pending = 0.0
        at_risk -= leaves[length]
    if pending:
        points.append((float(max(length for length in ends if ends[length])), hazard))
    return Curve([length for length, _ in points], [hazard for _, hazard in points])
