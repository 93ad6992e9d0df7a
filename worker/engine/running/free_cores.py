"""Fits the number of engine threads on a CPU to the cores that other programs leave free.

An operator ends when its slowest thread ends, and a thread that shares its core with another program is slow.
So two threads beside one busy process do less than one thread does. What others did while the engine had no
work says little of what they do now, so that time does not count. Linux only: elsewhere the number stays.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch

from worker.cores import count_cores, read_quota

# The kernel counts in hundredths of a second, so a shorter look would see noise.
LOOK_SECONDS = 0.25
# A thread is dropped when more than half of its core is taken, and comes back when three quarters are free.
SHARE_TO_KEEP = 0.5
SHARE_TO_GROW = 0.75
# Columns of /proc/stat after the core's name. Time that the hypervisor gave to others counts as busy; time of
# guests is in `user` already.
IDLE, IO_WAIT, STEAL = 3, 4, 7


class CpuTimes(NamedTuple):
    """CPU seconds since some moment in the past."""

    machine: float  # of all programs, on the cores that this process may use
    own: float  # of this process


class FreeCores:
    """Sets torch's number of threads for a thread that calls `adapt` before each of its Steps."""

    def __init__(
        self,
        most: int,
        *,
        num_cores: int | None = None,
        quota: float | None = None,
        read: Callable[[], CpuTimes | None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.num_threads = most
        self.most = most
        self._num_cores = num_cores or count_cores()
        self._quota = quota or read_quota()
        self._read = read or read_cpu_times
        self._clock = clock
        self._others: float | None = None  # cores that other programs use, smoothed
        # Since the last look, without rests: its time, and the time that others have used.
        self._elapsed = self._used = 0.0
        self._counted_at: float | None = clock()  # None: the engine rests
        self._times = self._read()

    def adapt(self, num_steps: int = 1) -> None:
        """Set the number of threads of a Step, one of so many that run at once.

        It first looks at what others use, unless the last look was a moment ago.
        """
        self._look()
        num_threads = max(1, self.num_threads // num_steps)
        if torch.get_num_threads() != num_threads:
            torch.set_num_threads(num_threads)

    def _look(self) -> None:
        if self._times is None:
            return
        now = self._clock()
        if self._counted_at is None:
            self._counted_at, self._times = now, self._read()
        if self._elapsed + now - self._counted_at < LOOK_SECONDS:
            return
        self._count(now)
        if self._times is None:
            return
        others = self._used / self._elapsed
        self._elapsed = self._used = 0.0
        self._others = others if self._others is None else (self._others + others) / 2
        # Others may use cores that a quota keeps from us anyway.
        self.num_threads = self._fitting(min(self._quota, self._num_cores - self._others))

    def rest(self) -> None:
        """Leave out the time until the next `adapt`, as there is no work."""
        if self._counted_at is not None:
            self._count(self._clock())
            self._counted_at = None

    def _count(self, now: float) -> None:
        """Add the time since it was last counted, and what others have used of it."""
        before, times = self._times, self._read()
        if before is not None and times is not None and self._counted_at is not None:
            self._elapsed += now - self._counted_at
            self._used += times.machine - before.machine - (times.own - before.own)
        self._counted_at, self._times = now, times

    def _fitting(self, free: float) -> int:
        """Return the number of threads for this many free cores."""
        keep, grow = int(free + 1 - SHARE_TO_KEEP), int(free + 1 - SHARE_TO_GROW)
        return max(1, min(self.most, max(min(self.num_threads, keep), grow)))


def read_cpu_times() -> CpuTimes | None:
    """Return the CPU times so far; None where the system does not tell."""
    try:
        lines = Path("/proc/stat").read_text().splitlines()
        cores = {f"cpu{core}" for core in os.sched_getaffinity(0)}
        tick = os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError):
        return None
    busy = 0
    for line in lines:
        name, *counts = line.split()
        if name in cores:
            busy += sum(map(int, counts[: STEAL + 1])) - int(counts[IDLE]) - int(counts[IO_WAIT])
    return CpuTimes(busy / tick, time.process_time())
