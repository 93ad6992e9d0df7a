"""Arrivals of batches for the simulated fleet: drawn from a seed, or read from a file."""

import json
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

HOUR = 3600.0
DAY = 24 * HOUR


@dataclass(frozen=True, slots=True)
class Arrival:
    """A batch that arrives. Times are in seconds; work is in seconds of one worker."""

    at: float
    seconds: float
    window: float  # from its arrival to its deadline
    tail_seconds: float = 30.0  # that its longest request takes


def diurnal(rng: random.Random) -> list[Arrival]:
    """Draw three days of batches: four times as many at noon as at midnight, windows of 1, 4 and 24 hours."""
    rate = 20 / HOUR

    def chance(at: float) -> float:
        return (1 - 0.6 * math.cos(2 * math.pi * at / DAY)) / 1.6

    found, at = [], 0.0
    while (at := at + rng.expovariate(rate)) < 3 * DAY:
        if rng.random() < chance(at):
            found.append(_draw(rng, at, mean_seconds=1200, windows=(HOUR, 4 * HOUR, DAY)))
    return found


def bursts(rng: random.Random) -> list[Arrival]:
    """Draw three days with a batch an hour, and every few hours 10 to 40 within ten minutes."""
    found = [_draw(rng, hour * HOUR + rng.random() * HOUR, 600, (4 * HOUR, DAY)) for hour in range(72)]
    at = 0.0
    while (at := at + rng.expovariate(1 / (5 * HOUR))) < 3 * DAY:
        count = rng.randint(10, 40)
        found += [_draw(rng, at + rng.random() * 600, 1200, (2 * HOUR, 4 * HOUR)) for _ in range(count)]
    return sorted(found, key=lambda one: one.at)


def nightly(rng: random.Random) -> list[Arrival]:
    """Draw three days with one dump of 200 batches at 1 o'clock, due in 24 hours, and a few by day."""
    found = [
        _draw(rng, day * DAY + HOUR + rng.random() * 300, mean_seconds=1800, windows=(DAY,))
        for day in range(3)
        for _ in range(200)
    ]
    at = 0.0
    while (at := at + rng.expovariate(1 / HOUR)) < 3 * DAY:
        found.append(_draw(rng, at, mean_seconds=600, windows=(HOUR, 4 * HOUR)))
    return sorted(found, key=lambda one: one.at)


def tight(rng: random.Random) -> list[Arrival]:
    """Draw two days of four small batches an hour, due in 30 or 60 minutes.

    Without slack, work cannot gather until a start pays: the policy is far above the bound here.
    """
    found, at = [], 0.0
    while (at := at + rng.expovariate(4 / HOUR)) < 2 * DAY:
        found.append(_draw(rng, at, mean_seconds=600, windows=(HOUR / 2, HOUR)))
    return found


def growing(rng: random.Random) -> list[Arrival]:
    """Draw four days by what is published of BurstGPT (arXiv 2401.17644 and its README).

    The paper models the gaps between requests as a Gamma distribution, burstier than Poisson. The trace has
    1,429.7 thousand requests in its first two months and 3,858.4 thousand in the next two, so the second half
    here has 2.7 times as many arrivals. The shape of 0.5, the sizes and the windows are ours.
    """
    shape, gap = 0.5, HOUR / 6
    found, at = [], 0.0
    while at < 4 * DAY:
        at += rng.gammavariate(shape, (gap if at < 2 * DAY else gap * 1429.7 / 3858.4) / shape)
        found.append(_draw(rng, at, mean_seconds=900, windows=(HOUR, 4 * HOUR, DAY)))
    return found


TIGHT = "tight"
TRACES: dict[str, Callable[[random.Random], list[Arrival]]] = {
    "diurnal": diurnal,
    "bursts": bursts,
    "nightly": nightly,
    TIGHT: tight,
    "burstgpt": growing,
}


def read(path: Path) -> list[Arrival]:
    """Read a recorded trace: JSON lines of `at`, `seconds` and `window`, perhaps `tail_seconds`.

    Raises:
        ValueError: a line is none of that; the message names it.

    """
    found = []
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        try:
            given = {name: float(value) for name, value in json.loads(line).items()}
            arrival = Arrival(**given)
        except (ValueError, TypeError, AttributeError) as error:
            raise ValueError(f"{path}, line {number}: {error}") from None
        if not (arrival.at >= 0 and arrival.seconds > 0 and arrival.window > 0 and arrival.tail_seconds >= 0):
            raise ValueError(f"{path}, line {number}: times must be positive")
        found.append(arrival)
    if not found:
        raise ValueError(f"{path} is empty")
    return sorted(found, key=lambda one: one.at)


def _draw(rng: random.Random, at: float, mean_seconds: float, windows: tuple[float, ...]) -> Arrival:
    """Draw a batch whose size is lognormal, and which one worker could run in half of its window."""
    deviation = 1.0
    window = rng.choice(windows)
    seconds = rng.lognormvariate(math.log(mean_seconds) - deviation**2 / 2, deviation)
    return Arrival(at, min(seconds, window / 2), window)
