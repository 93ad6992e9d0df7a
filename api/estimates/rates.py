"""What a token costs on the device, by what the workers have measured."""

from collections.abc import Iterable
from dataclasses import dataclass

from api.estimates.lengths import Range, spread
from worker.contract.meters import Readings
from worker.store.meters import Measured

# Minutes that computed less say little of a busy one.
LEAST_TOKENS = 1000
# What the range is until enough minutes were measured to tell.
UNKNOWN = Range(0.5, 1.0, 2.0)
LEAST_MINUTES = 3


@dataclass(frozen=True, slots=True)
class Rates:
    """Seconds of the device a token, padding included, and how they scatter from minute to minute."""

    prefill: float
    decode: float
    step: float  # seconds a Step takes on average
    scatter: Range  # around 1

    def device_seconds(self, prompt_tokens: float, output_tokens: float) -> float:
        """Return what so many tokens take at the mean rate."""
        return prompt_tokens * self.prefill + output_tokens * self.decode


def learn(measured: Measured) -> Rates | None:
    """Return the rates of the last minutes, or of all time if those were idle; None: nothing was measured."""
    for readings in (measured.recent, measured.total):
        rates = _rates(readings)
        if rates is not None:
            return Rates(*rates, _scatter(rates, (one.readings for one in measured.minutes)))
    return None


def _rates(readings: Readings) -> tuple[float, float, float] | None:
    prefill_tokens, decode_tokens = readings.get("prefill_tokens", 0), readings.get("decode_tokens", 0)
    prefill, decode = readings.get("prefill_seconds", 0.0), readings.get("decode_seconds", 0.0)
    if not prefill_tokens or not decode_tokens:
        return None
    # Padding goes with the rows it stands beside.
    whole = _seconds(readings)
    padded = whole / (prefill + decode)
    return prefill * padded / prefill_tokens, decode * padded / decode_tokens, whole / readings["steps"]


def _seconds(readings: Readings) -> float:
    return sum(readings.get(f"{kind}_seconds", 0.0) for kind in ("prefill", "decode", "padding"))


def _scatter(rates: tuple[float, float, float], minutes: Iterable[Readings]) -> Range:
    prefill, decode, _ = rates
    ratios = [
        _seconds(one) / (one.get("prefill_tokens", 0) * prefill + one.get("decode_tokens", 0) * decode)
        for one in minutes
        if one.get("prefill_tokens", 0) + one.get("decode_tokens", 0) >= LEAST_TOKENS
    ]
    if len(ratios) < LEAST_MINUTES:
        return UNKNOWN
    seen = spread(ratios)
    return Range(min(seen.low, 1.0), 1.0, max(seen.high, 1.0))
