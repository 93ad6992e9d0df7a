"""What forecasts were worth: how long batches took that were forecast by the costs of Steps alone.

A batch takes a moment of its own on its way (tickets, claims, saves), and so much of the forecast; what is
left over is the scatter that the next forecast states.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp, log, log2, sqrt

from api.forecasts.ranges import DEVIATIONS, Range
from worker.store.watching.outlook import ForecastOutcome

# What a batch takes on its way, at most and before anybody knows, in seconds.
OVERHEADS = (0.0, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.6, 0.8, 1.2, 1.6, 2.4)
FIRST_OVERHEAD = 0.3
# These are taken for outcomes that were as forecast, so that a few others do not say everything.
FIRST_OUTCOMES = tuple(ForecastOutcome(seconds, FIRST_OVERHEAD + seconds) for seconds in (0.1, 1.0, 10.0))
# The scatter before anybody knows, as the deviation of a logarithm; it counts as so many outcomes.
FIRST_DEVIATION, FIRST_WEIGHT = 0.5, 1.5
# An outcome counts half as much when so many more have come since, and when the forecast was so many times
# longer or shorter.
HALF_AFTER, HALF_AT_DOUBLINGS = 40.0, 3.0
# One that is further off than so many times the usual was an accident, of which only that it was one is kept.
ACCIDENT = 2.5


@dataclass(frozen=True, slots=True)
class Calibration:
    """From what the costs of Steps say to what is true, with its scatter."""

    overhead: float
    factor: float
    # Forecast, how far the truth was from it (as a logarithm), and how much that counts.
    residuals: Sequence[tuple[float, float, float]]

    def apply(self, forecast: float, *, overhead: float = 1.0) -> Range:
        """Return how long it takes what is forecast to take so long; `overhead`: the share still to come."""
        expected = self.overhead * overhead + self.factor * forecast
        weighted = []
        for seen, residual, weight in self.residuals:
            doublings = log2(max(seen, 0.01) / max(forecast, 0.01))
            weighted.append((residual, weight / (1 + (doublings / HALF_AT_DOUBLINGS) ** 2)))
        usual = _usual([(abs(one), weight) for one, weight in weighted])
        below = _deviation([(min(-one, ACCIDENT * usual), weight) for one, weight in weighted if one < 0])
        above = _deviation([(min(one, ACCIDENT * usual), weight) for one, weight in weighted if one >= 0])
        return Range(expected * exp(-DEVIATIONS * below), expected, expected * exp(DEVIATIONS * above))


def calibrate(outcomes: Sequence[ForecastOutcome]) -> Calibration:
    """Learn from outcomes, the newest first."""
    weighted = [(one, 1.0) for one in FIRST_OUTCOMES]
    weighted += [(one, 0.5 ** (age / HALF_AFTER)) for age, one in enumerate(outcomes)]
    candidates = [(overhead, _factor(weighted, overhead)) for overhead in OVERHEADS]
    overhead, factor = min(candidates, key=_error_over(weighted))
    residuals = [
        (one.forecast_seconds, _residual(one, overhead, factor), weight)
        for one, weight in weighted[len(FIRST_OUTCOMES) :]
    ]
    return Calibration(overhead, factor, residuals)


Weighted = Sequence[tuple[ForecastOutcome, float]]


def _factor(weighted: Weighted, overhead: float) -> float:
    """Return the median of what remained of the time over the forecast, those that are long counting most."""
    ratios = []
    for one, weight in weighted:
        rest = max(one.seconds - overhead, 0.05 * one.seconds)
        share = one.forecast_seconds / (overhead + one.forecast_seconds)
        ratios.append((rest / max(one.forecast_seconds, 1e-3), weight * share))
    return _median(ratios)


def _error_over(weighted: Weighted) -> "Callable[[tuple[float, float]], float]":
    return lambda found: sum(weight * abs(_residual(one, *found)) for one, weight in weighted)


def _residual(one: ForecastOutcome, overhead: float, factor: float) -> float:
    return log(max(one.seconds, 1e-3) / max(overhead + factor * one.forecast_seconds, 1e-3))


def _median(weighted: Sequence[tuple[float, float]]) -> float:
    half = sum(weight for _, weight in weighted) / 2
    ordered = sorted(weighted)
    for value, weight in ordered:
        half -= weight
        if half <= 0:
            return value
    return ordered[-1][0]


def _usual(weighted: Sequence[tuple[float, float]]) -> float:
    """Return the deviation of a normal distribution with such a median of distances."""
    return max(0.05, _median([*weighted, (FIRST_DEVIATION * 0.6745, FIRST_WEIGHT)]) / 0.6745)


def _deviation(weighted: Sequence[tuple[float, float]]) -> float:
    """Return the root mean square of residuals on one side."""
    total = FIRST_WEIGHT / 2 + sum(weight for _, weight in weighted)
    squares = FIRST_WEIGHT / 2 * FIRST_DEVIATION**2 + sum(weight * one**2 for one, weight in weighted)
    return sqrt(squares / total)
