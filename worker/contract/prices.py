"""Define what work costs. Stored costs are whole billionths of the currency, so that their sums are exact."""

from dataclasses import dataclass
from typing import Self

from worker.settings import Settings

BILLIONTHS = 1_000_000_000
SECONDS_PER_HOUR = 3600
MILLION = 1_000_000


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices of a process at the time: for an hour of a device, and for a million tokens."""

    device_hour: float = 0.0
    million_input_tokens: float = 0.0
    million_output_tokens: float = 0.0

    @classmethod
    def of(cls, config: Settings) -> Self:
        """Return the prices in a process's settings."""
        return cls(
            config.price_per_device_hour,
            config.price_per_million_input_tokens,
            config.price_per_million_output_tokens,
        )

    def cost(self, *, device_seconds: float, input_tokens: int, output_tokens: int) -> int:
        """Return what this work costs, in billionths of the currency."""
        cost = self.device_hour * device_seconds / SECONDS_PER_HOUR
        cost += self.million_input_tokens * input_tokens / MILLION
        cost += self.million_output_tokens * output_tokens / MILLION
        return round(cost * BILLIONTHS)


FREE = Prices()


def to_amount(billionths: float) -> float:
    """Return a stored cost in the currency."""
    return round(billionths / BILLIONTHS, 9)
