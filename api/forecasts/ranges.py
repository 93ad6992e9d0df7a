"""A guess, and what it lies between."""

from dataclasses import dataclass
from math import exp, hypot, log

# The chances that the truth lies between the ends, and how many standard deviations that is to each side.
PROBABILITY = 0.9
DEVIATIONS = 1.645


@dataclass(frozen=True, slots=True)
class Range:
    """Nine times in ten the truth lies between the ends."""

    low: float
    expected: float
    high: float

    def __mul__(self, factor: float) -> "Range":
        return Range(self.low * factor, self.expected * factor, self.high * factor)

    def widened(self, low: float, high: float) -> "Range":
        """Return it with another doubt, which does not hang on the first: by these factors, 1 within them."""
        return Range(
            self.expected * exp(-hypot(_log(self.expected, self.low), log(1 / min(low, 1.0)))),
            self.expected,
            self.expected * exp(hypot(_log(self.high, self.expected), log(max(high, 1.0)))),
        )


def _log(above: float, below: float) -> float:
    return log(above / below) if below > 0 else 0.0
