"""The scaling policy: how many workers of each capacity type the deadlines of a model's backlog need.

Pure arithmetic on one moment: the work left by deadline, the workers there are, and how long a new one takes
to start. Work is counted in seconds of one worker.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil

# Rounding must not start a worker.
LEAST = 1e-6


@dataclass(frozen=True, slots=True)
class DueWork:
    """The work left of one batch, and when it is due. Times count from now."""

    due_seconds: float  # until its deadline
    seconds: float  # of one worker, at the upper end of the estimate
    tail_seconds: float = 0.0  # that its longest request takes, however many workers there are

    @property
    def limit(self) -> float:
        """The seconds in which its work must be shared out to workers."""
        return self.due_seconds - self.tail_seconds


@dataclass(frozen=True, slots=True)
class WorkerGroup:
    """The workers of one capacity type, on demand or spot."""

    num_busy: int = 0
    idle_seconds: tuple[float, ...] = ()  # of each worker without work: since when it has none
    ready_seconds: tuple[float, ...] = ()  # of each worker that starts: until it takes work
    most: int = 0  # workers there may be

    @property
    def num_workers(self) -> int:
        """The number of workers, starting ones included."""
        return self.num_busy + len(self.idle_seconds) + len(self.ready_seconds)

    @property
    def ready(self) -> list[float]:
        """The seconds until each worker takes work."""
        return [0.0] * (self.num_busy + len(self.idle_seconds)) + list(self.ready_seconds)


@dataclass(frozen=True, slots=True)
class ScalingTimes:
    """What the policy assumes of time, in seconds."""

    cold_start: float  # from the wish for a worker until it takes work, at the upper end
    every: float  # between two decisions
    hold: float = 0.0  # that a worker stays without work


@dataclass(frozen=True, slots=True)
class Wanted:
    """The wanted number of workers by capacity type."""

    on_demand: int
    spot: int = 0


def decide(
    work: Sequence[DueWork],
    times: ScalingTimes,
    on_demand: WorkerGroup,
    spot: WorkerGroup | None = None,
    *,
    least: int = 0,
) -> Wanted:
    """Return how many workers are wanted now: at least `least` together, and never fewer than are busy.

    A worker is started as late as the deadlines allow: until then work gathers, and one start serves more of
    it. Once it runs, it is kept while it has work. Work that no new worker can finish in time asks for none.

    Spot workers may be lost at any time. They are planned to end their work early enough before the deadline
    to replace one that is lost. What is due sooner than that is planned on demand.
    """
    spot = spot or WorkerGroup()
    work = sorted((one for one in work if one.seconds > LEAST), key=lambda one: one.limit)
    if spot.most == 0:
        return Wanted(
            _within(on_demand, max(least, _needed(work, times, on_demand, spot.ready))), spot.num_busy
        )
    replacing = times.cold_start + times.every
    soon = [one for one in work if one.limit < 2 * replacing]
    steady = _within(on_demand, _needed(soon, times, on_demand, spot.ready))
    early = [replace(one, due_seconds=one.due_seconds - replacing) for one in work[len(soon) :]]
    early = sorted([*soon, *early], key=lambda one: one.limit)
    helping = _supply(on_demand, steady, times)
    passing = _within(spot, max(least - steady, _needed(early, times, spot, helping)))
    if passing == spot.most:  # the rest is wanted on demand
        rest = _needed(work, times, on_demand, _supply(spot, passing, times))
        steady = _within(on_demand, max(steady, rest, least - passing))
    return Wanted(steady, passing)


def _needed(
    work: Sequence[DueWork], times: ScalingTimes, group: WorkerGroup, helping: Sequence[float]
) -> int:
    """Return the number of workers of one type that work, in order of deadline, need beside others.

    `helping` holds the seconds until each of the others takes work.
    """
    is_held = [idle < times.hold for idle in group.idle_seconds]
    if not work:
        return group.num_busy + sum(is_held)
    if new := _missing(work, times, [*helping, *group.ready]):
        return group.num_workers + new
    if not all(is_held):
        fewer = replace(group, idle_seconds=tuple(idle for idle in group.idle_seconds if idle < times.hold))
        if not _missing(work, times, [*helping, *fewer.ready]):
            return fewer.num_workers
    return group.num_workers


def _missing(work: Sequence[DueWork], times: ScalingTimes, ready: Sequence[float]) -> int:
    """Return how many more workers must start now. 0: the same number still suffices at the next decision."""
    total, missing = 0.0, 0
    at_once = sum(seconds <= 0 for seconds in ready)
    later = [seconds for seconds in ready if seconds > 0]
    for one in work:
        total += one.seconds
        limit = one.limit
        supply = at_once * max(0.0, limit) + sum(max(0.0, limit - seconds) for seconds in later)
        rest, room = total - supply, limit - times.cold_start
        if rest <= LEAST or room <= 0:
            continue
        count, next_room = ceil(rest / room - LEAST), room - times.every
        if next_room <= 0 or ceil(rest / next_room - LEAST) > count:
            missing = max(missing, count)
    return missing


def _supply(group: WorkerGroup, count: int, times: ScalingTimes) -> list[float]:
    """Return the seconds until each of `count` workers takes work, when new ones start now."""
    ready = group.ready
    return [*ready[:count], *[times.cold_start] * (count - len(ready))]


def _within(group: WorkerGroup, count: int) -> int:
    return max(group.num_busy, min(group.most, count))
