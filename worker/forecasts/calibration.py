"""Corrects forecasts by Step costs with the time that past batches really took.

A batch takes a fixed overhead (tickets, claims, saves) plus a factor times its forecast. The scatter of past
batches around that gives the range of the next forecast.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp, log, log2, sqrt

from worker.forecasts.ranges import DEVIATIONS, Range
from worker.store.watching.outlook import ForecastOutcome

# Possible overheads, and the one before any outcome is known, in seconds.
OVERHEADS = (0.0, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.6, 0.8, 1.2, 1.6, 2.4)
FIRST_OVERHEAD = 0.3
# Prior outcomes that match their forecast, so that a few real ones do not decide everything.
FIRST_OUTCOMES = tuple(ForecastOutcome(seconds, FIRST_OVERHEAD + seconds) for seconds in (0.1, 1.0, 10.0))
# The prior scatter, as the standard deviation of a logarithm, and its weight in outcomes.
FIRST_DEVIATION, FIRST_WEIGHT = 0.5, 1.5
# An outcome's weight halves after this many newer outcomes, and where its forecast is this many doublings
# longer or shorter than the new one.
HALF_AFTER, HALF_AT_DOUBLINGS = 40.0, 3.0
# A residual over this many usual ones was an accident, and is capped there.
ACCIDENT = 2.5


@dataclass(frozen=True, slots=True)
class Calibration:
    """Turns a forecast by Step costs into a range of real seconds."""

    overhead: float
    factor: float
    # Of each outcome: forecast, logarithm of the truth over the calibrated forecast, weight.
    residuals: Sequence[tuple[float, float, float]]

    def apply(self, forecast: float, *, overhead: float = 1.0) -> Range:
        """Return the range of real seconds; `overhead` is the share of the overhead still to come."""
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
    """Return the calibration by past outcomes, given newest first."""
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
    """Return the median of (time - overhead) / forecast, in which long forecasts weigh most."""
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
    """Return the standard deviation of a normal distribution with this median distance from its mean."""
    return max(0.05, _median([*weighted, (FIRST_DEVIATION * 0.6745, FIRST_WEIGHT)]) / 0.6745)


def _deviation(weighted: Sequence[tuple[float, float]]) -> float:
    """Return the root mean square of residuals on one side."""
    total = FIRST_WEIGHT / 2 + sum(weight for _, weight in weighted)
    squares = FIRST_WEIGHT / 2 * FIRST_DEVIATION**2 + sum(weight * one**2 for one, weight in weighted)
    return sqrt(squares / total)
