"""A simulated fleet over a trace of batches: starts, cold starts, spot preemptions, deadlines.

Work is a fluid: workers share it evenly, in order of deadline. A batch that misses its deadline ends there,
as in the product. Busy workers never end.
"""

import heapq
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from benchmarks.arrivals import HOUR, Arrival

TICK = 30.0
EVERY = 60.0  # between two decisions
COLD_START = (120.0, 480.0)
SPOT_LIFE = 6 * HOUR  # the mean
# The error of the estimates, as standard deviations of logarithms: of one batch, and of a worker's rate.
WORK_DEVIATION, RATE_DEVIATION = 0.3, 0.1
UPPER = 1.645  # deviations to the upper end of an interval that holds nine values in ten


@dataclass(slots=True, eq=False)
class Live:
    """A batch that has work left."""

    arrival: Arrival
    left: float  # seconds of one worker, in truth
    error: float  # the estimate over the truth

    @property
    def deadline(self) -> float:
        """When it must have ended."""
        return self.arrival.at + self.arrival.window


@dataclass(slots=True, eq=False)
class Instance:
    """A worker, from the decision that starts it."""

    is_spot: bool
    started_at: float
    ready_at: float
    ends_at: float  # when its market takes it away
    idle_since: float | None = None


@dataclass(slots=True)
class Totals:
    """What a run came to."""

    gpu_seconds: float = 0.0
    spot_seconds: float = 0.0  # of them
    misses: int = 0
    starts: int = 0
    preemptions: int = 0
    most_at_once: int = 0
    # At each decision: the time, the workers, and the work that is left, in seconds of one worker.
    course: list[tuple[float, int, float]] = field(default_factory=list)

    @property
    def gpu_hours(self) -> float:
        """The hours of all workers together, from their starts to their ends."""
        return self.gpu_seconds / HOUR


@dataclass(slots=True)
class Fleet:
    """The state of a run, as a scaler sees it."""

    rng: random.Random
    rate_error: float  # the measured seconds of work over the true ones, the same for all
    now: float = 0.0
    live: list[tuple[float, int, Live]] = field(default_factory=list)  # a heap by deadline
    instances: list[Instance] = field(default_factory=list)
    totals: Totals = field(default_factory=Totals)
    num_arrived: int = 0
    arrived_seconds: float = 0.0  # work that arrived since the last decision

    def estimate(self, one: Live) -> float:
        """Return the expected seconds of work left of a batch."""
        return one.left * one.error * self.rate_error

    def start(self, count: int, *, spot: bool) -> None:
        """Start workers."""
        for _ in range(count):
            ready_at = self.now + self.rng.uniform(*COLD_START)
            ends_at = self.now + self.rng.expovariate(1 / SPOT_LIFE) if spot else math.inf
            self.instances.append(Instance(spot, self.now, ready_at, ends_at))
            self.totals.starts += 1

    def end(self, count: int, *, spot: bool) -> None:
        """End workers that are not busy: starting ones first, then those idle for longest."""
        chosen = [one for one in self.instances if one.is_spot == spot and self._may_end(one)]
        chosen.sort(key=lambda one: (one.ready_at <= self.now, one.idle_since or 0.0))
        for one in chosen[:count]:
            self.instances.remove(one)

    def resize(self, wanted: int, *, spot: bool) -> None:
        """Start or end workers of one type, to have as many as wanted; busy ones stay."""
        have = sum(one.is_spot == spot for one in self.instances)
        if wanted > have:
            self.start(wanted - have, spot=spot)
        else:
            self.end(have - wanted, spot=spot)

    def _may_end(self, one: Instance) -> bool:
        return one.ready_at > self.now or one.idle_since is not None

    def tick(self, arrivals: Sequence[Arrival]) -> None:
        """Advance by one tick, in which these batches arrive."""
        for arrival in arrivals:
            error = self.rng.lognormvariate(0, WORK_DEVIATION)
            arrived = Live(arrival, arrival.seconds, error)
            heapq.heappush(self.live, (arrived.deadline, self.num_arrived, arrived))
            self.num_arrived += 1
            self.arrived_seconds += self.estimate(arrived)
        lost = [one for one in self.instances if one.ends_at <= self.now]
        self.instances = [one for one in self.instances if one.ends_at > self.now]
        self.totals.preemptions += len(lost)
        ready = [one for one in self.instances if one.ready_at <= self.now]
        num_busy = self._work(len(ready) * TICK)
        for place, one in enumerate(ready):
            if place < num_busy:
                one.idle_since = None
            elif one.idle_since is None:
                one.idle_since = self.now
        self.totals.gpu_seconds += TICK * len(self.instances)
        self.totals.spot_seconds += TICK * sum(one.is_spot for one in self.instances)
        self.totals.most_at_once = max(self.totals.most_at_once, len(self.instances))
        self.now += TICK

    def _work(self, seconds: float) -> int:
        """Do so much work; return how many workers that kept busy."""
        done = 0.0
        while self.live:
            deadline, _, one = self.live[0]
            # Its last requests must have started before their time to run.
            if self.now + TICK + one.arrival.tail_seconds > deadline and one.left > seconds - done:
                self.totals.misses += 1
                heapq.heappop(self.live)
                continue
            part = min(one.left, seconds - done)
            done += part
            one.left -= part
            if one.left > 1e-6:
                break
            heapq.heappop(self.live)
        return math.ceil(done / TICK - 1e-6)


Scaler = Callable[[Fleet], None]


def run(trace: Sequence[Arrival], scaler: Scaler, *, seed: int) -> Totals:
    """Run a trace under a scaler until the last batch has ended and nobody runs, or a day after it."""
    rng = random.Random(seed)
    fleet = Fleet(rng, rng.lognormvariate(0, RATE_DEVIATION))
    place = 0
    decide_at = 0.0
    end = max(one.at + one.window for one in trace)
    while fleet.now < end or (fleet.instances and fleet.now < end + 24 * HOUR):
        first = place
        while place < len(trace) and trace[place].at < fleet.now + TICK:
            place += 1
        fleet.tick(trace[first:place])
        if fleet.now >= decide_at:
            scaler(fleet)
            left = sum(one.left for _, _, one in fleet.live)
            fleet.totals.course.append((fleet.now, len(fleet.instances), left))
            fleet.arrived_seconds = 0.0
            decide_at += EVERY
    return fleet.totals
