r"""Compares scaling policies over traces of batches, in a simulated fleet.

    python -m benchmarks.autoscale

Each policy runs every trace with the same errors of estimates, cold starts of 2 to 8 minutes and spot workers
that live for 6 hours on average. There is no service and no model. The last line is JSON.
"""

import argparse
import json
import math
import random
import sys
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.arrivals import HOUR, TIGHT, TRACES, Arrival, read
from benchmarks.autoscale_pictures import draw_course, draw_hours
from benchmarks.simulated_fleet import (
    COLD_START,
    EVERY,
    RATE_DEVIATION,
    UPPER,
    WORK_DEVIATION,
    Fleet,
    Scaler,
    Totals,
    run,
)
from worker.scaling.policy import DueWork, ScalingTimes, WorkerGroup, decide

MOST = 64  # workers of each type
HOLD = 60.0
# What KEDA keeps: the highest wish of this long.
COOLDOWN = 300.0
# Of the policies to compare with: each is tuned to the fewest hours that miss no more than ours does.
HEADROOMS = (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)
BATCHES_A_WORKER = (16.0, 8.0, 4.0, 2.0, 1.0, 0.5)
TOO_HIGH = math.exp(UPPER * math.hypot(WORK_DEVIATION, RATE_DEVIATION))


def predictive(*, spot: bool) -> Scaler:
    """Return the policy of the product."""
    times = ScalingTimes(cold_start=COLD_START[1], every=EVERY, hold=HOLD)

    def scale(fleet: Fleet) -> None:
        due = [
            DueWork(deadline - fleet.now, TOO_HIGH * fleet.estimate(one), one.arrival.tail_seconds)
            for deadline, _, one in fleet.live
        ]
        wanted = decide(
            due,
            times,
            _group(fleet, is_spot=False),
            _group(fleet, is_spot=True) if spot else None,
        )
        fleet.resize(wanted.on_demand, spot=False)
        fleet.resize(wanted.spot, spot=True)

    return scale


def _group(fleet: Fleet, *, is_spot: bool) -> WorkerGroup:
    """Return the workers of one type. Nobody knows when one that starts will be ready: at the latest."""
    idle, ready, num_busy = [], [], 0
    for one in fleet.instances:
        if one.is_spot != is_spot:
            continue
        if one.ready_at > fleet.now:
            ready.append(max(0.0, one.started_at + COLD_START[1] - fleet.now))
        elif one.idle_since is not None:
            idle.append(fleet.now - one.idle_since)
        else:
            num_busy += 1
    return WorkerGroup(num_busy, tuple(idle), tuple(ready), MOST)


@dataclass(slots=True)
class _Cooled:
    """Resizes to the highest wish of the last COOLDOWN seconds."""

    wish: Callable[[Fleet], float]
    _recent: deque[tuple[float, int]] = field(default_factory=deque)

    def __call__(self, fleet: Fleet) -> None:
        count = min(MOST, max(math.ceil(self.wish(fleet) - 1e-9), 1 if fleet.live else 0))
        self._recent.append((fleet.now, count))
        while self._recent[0][0] < fleet.now - COOLDOWN:
            self._recent.popleft()
        fleet.resize(max(count for _, count in self._recent), spot=False)


def last_value(headroom: float) -> Scaler:
    """Return the policy that expects what arrived in the last five minutes to go on arriving."""
    arrived: deque[float] = deque(maxlen=round(COOLDOWN / EVERY))

    def wish(fleet: Fleet) -> float:
        arrived.append(fleet.arrived_seconds)
        return headroom * sum(arrived) / (len(arrived) * EVERY)

    return _Cooled(wish)


def queue_length(batches_a_worker: float) -> Scaler:
    """Return the policy of one worker for so many live batches."""
    return _Cooled(lambda fleet: len(fleet.live) / batches_a_worker)


def everything(fleet: Fleet) -> None:
    """Keep every worker that there may be, always."""
    fleet.resize(MOST, spot=False)


def least_hours(trace: Sequence[Arrival]) -> float:
    """Return GPU-hours below which no schedule can meet every deadline, not even one that knows the trace.

    All of the work, and a shortest cold start for each worker of the highest number that must run at once:
    work that arrives after one moment and is due before another.
    """
    peak = 0
    by_deadline = sorted(trace, key=lambda one: one.at + one.window)
    for first in trace[:: max(1, len(trace) // 300)]:
        total = 0.0
        for one in by_deadline:
            if one.at >= first.at:
                total += one.seconds
                peak = max(peak, math.ceil(total / (one.at + one.window - first.at) - 1e-9))
    return (sum(one.seconds for one in trace) + peak * COLD_START[0]) / HOUR


def compare(
    name: str, trace: Sequence[Arrival], *, seed: int, pictures: Path | None = None
) -> dict[str, Any]:
    """Run one trace under every policy; return the figures, and draw the runs if there is a folder for it."""
    ours = run(trace, predictive(spot=False), seed=seed)
    spot = run(trace, predictive(spot=True), seed=seed)
    oracle_misses = run(trace, everything, seed=seed).misses
    last = _tuned(trace, last_value, HEADROOMS, seed, ours.misses)
    queue = _tuned(trace, queue_length, BATCHES_A_WORKER, seed, ours.misses)
    oracle = least_hours(trace)
    if pictures is not None:
        runs = {"last value": last, "queue length": queue, "ours": ours}
        draw_course(pictures / f"{name}.png", {policy: one.course for policy, one in runs.items()})
    return {
        "trace": name,
        "seed": seed,
        "batches": len(trace),
        "oracle_gpu_hours": round(oracle, 1),
        "oracle_misses": oracle_misses,
        "gpu_hours": round(ours.gpu_hours, 1),
        "misses": ours.misses,
        "starts": ours.starts,
        "most_workers": ours.most_at_once,
        "spot_gpu_hours": round(spot.gpu_hours, 1),
        "spot_share": round(spot.spot_seconds / max(1.0, spot.gpu_seconds), 3),
        "spot_misses": spot.misses,
        "preemptions": spot.preemptions,
        "last_value_gpu_hours": round(last.gpu_hours, 1),
        "last_value_misses": last.misses,
        "queue_length_gpu_hours": round(queue.gpu_hours, 1),
        "queue_length_misses": queue.misses,
    }


def _tuned(
    trace: Sequence[Arrival],
    scaler: Callable[[float], Scaler],
    choices: Sequence[float],
    seed: int,
    misses: int,
) -> Totals:
    """Return the run with the fewest hours among those that miss no more; failing that, the fewest misses."""
    runs = [run(trace, scaler(choice), seed=seed) for choice in choices]
    return min(runs, key=lambda one: (max(0, one.misses - misses), one.gpu_seconds))


def summary(found: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Return the last line: the worst trace over the oracle, and all of them over last-value scaling."""
    sides = (("gpu_hours", "misses"), ("spot_gpu_hours", "spot_misses"))
    return {
        "gpu_hours_over_oracle": max(
            round(one[hours] / one["oracle_gpu_hours"], 3) for one in found for hours, _ in sides
        ),
        "misses_beyond_oracle": sum(
            max(0, one[misses] - one["oracle_misses"]) for one in found for _, misses in sides
        ),
        "gpu_hours_over_last_value": round(
            sum(one["gpu_hours"] for one in found) / sum(one["last_value_gpu_hours"] for one in found), 3
        ),
    }


def main(arguments: list[str] | None = None) -> int:
    """Compare over the traces; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", choices=sorted(TRACES), help=f"one of the drawn traces (default: all but {TIGHT})"
    )
    parser.add_argument("--trace", type=Path, help="a recorded trace instead (docs/autoscaling.md)")
    parser.add_argument("--seeds", type=int, default=1, help="runs of each trace (default 1)")
    parser.add_argument("--pictures", type=Path, help="draw the first seed's runs as PNG into this folder")
    options = parser.parse_args(arguments)
    if options.seeds < 1:
        parser.error("--seeds must be at least 1")
    if options.pictures is not None:
        options.pictures.mkdir(parents=True, exist_ok=True)
    found = []
    for seed in range(options.seeds):
        try:
            traces = (
                {options.trace.name: read(options.trace)}
                if options.trace
                else {
                    name: draw(random.Random(seed))
                    for name, draw in TRACES.items()
                    if options.only == name or (options.only is None and name != TIGHT)
                }
            )
        except (OSError, ValueError) as error:
            print(f"benchmarks.autoscale: {error}", file=sys.stderr)
            return 2
        for name, trace in traces.items():
            found.append(compare(name, trace, seed=seed, pictures=None if seed else options.pictures))
            print(json.dumps(found[-1]), flush=True)
    if options.pictures is not None:
        draw_hours(options.pictures / "hours.png", [one for one in found if one["seed"] == 0])
    print(json.dumps(summary(found)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
