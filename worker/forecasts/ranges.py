"""Defines Range, an expected value with its interval."""

from dataclasses import dataclass
from math import exp, hypot, log

# The probability that the truth lies in the interval, and its half width in standard deviations.
PROBABILITY = 0.9
DEVIATIONS = 1.645


@dataclass(frozen=True, slots=True)
class Range:
    """An expected value, and an interval that contains the truth nine times in ten."""

    low: float
    expected: float
    high: float

    def __mul__(self, factor: float) -> "Range":
        return Range(self.low * factor, self.expected * factor, self.high * factor)

    def widened(self, low: float, high: float) -> "Range":
        """Return the range widened by an independent doubt: the factors `low` <= 1 and `high` >= 1."""
        return Range(
            self.expected * exp(-hypot(_log(self.expected, self.low), log(1 / min(low, 1.0)))),
            self.expected,
            self.expected * exp(hypot(_log(self.high, self.expected), log(max(high, 1.0)))),
        )


def _log(above: float, below: float) -> float:
    return log(above / below) if below > 0 else 0.0
