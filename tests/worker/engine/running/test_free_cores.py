"""The engine gives way on cores that other programs use, and comes back when they stop."""

import math
import os
from collections.abc import Iterator

import pytest
import torch

from benchmarks.neighbours import busy_neighbours
from tests.fixtures.deployment import eventually
from worker.cores import usable_cores
from worker.engine.running.free_cores import (
    LOOK_SECONDS,
    CpuTimes,
    FreeCores,
    read_cpu_times,
)


@pytest.fixture(autouse=True)
def _own_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


class Machine:
    """A machine of 4 cores whose other programs use what a test says."""

    def __init__(self, most: int, quota: float = math.inf) -> None:
        self.now = self.total = self.own = 0.0
        self.cores = FreeCores(most, num_cores=4, quota=quota, read=self.read, clock=lambda: self.now)

    def read(self) -> CpuTimes:
        return CpuTimes(self.total, self.own)

    def run(self, others: float, *, own: float = 2.0, seconds: float = 10.0) -> int:
        """Let time pass under a load; return the number of threads at its end."""
        for _ in range(round(seconds / LOOK_SECONDS)):
            self.now += LOOK_SECONDS
            self.own += own * LOOK_SECONDS
            self.total += (own + others) * LOOK_SECONDS
            self.cores.adapt()
        assert torch.get_num_threads() == self.cores.num_threads
        return self.cores.num_threads

    def sleep(self, others: float, *, seconds: float) -> None:
        """Let time pass without work."""
        self.cores.rest()
        self.now += seconds
        self.total += others * seconds


@pytest.mark.parametrize(
    ("others", "threads"), [(0.0, 4), (0.4, 4), (0.6, 3), (1.0, 3), (2.0, 2), (3.0, 1), (3.9, 1), (9.0, 1)]
)
def test_threads_give_way_to_what_others_use(others: float, threads: int) -> None:
    torch.set_num_threads(4)
    assert Machine(4).run(others) == threads


def test_threads_come_back_up_to_the_number_that_was_given() -> None:
    torch.set_num_threads(3)
    machine = Machine(3)
    assert machine.run(3.0) == 1
    assert machine.run(1.9) == 2
    assert machine.run(0.0) == 3


def test_a_load_between_the_two_limits_changes_nothing() -> None:
    """Otherwise the number would change with every look."""
    torch.set_num_threads(4)
    machine = Machine(4)
    assert machine.run(0.4) == 4
    assert machine.run(1.0) == 3
    assert machine.run(0.4) == 3
    assert machine.run(0.2) == 4


def test_its_own_work_is_no_reason_to_give_way() -> None:
    torch.set_num_threads(4)
    assert Machine(4).run(0.0, own=4.0) == 4


def test_what_others_use_while_there_is_no_work_does_not_count() -> None:
    torch.set_num_threads(4)
    machine = Machine(4)
    assert machine.run(0.0) == 4
    machine.sleep(3.0, seconds=60)
    assert machine.run(0.0, seconds=LOOK_SECONDS) == 4
    machine.sleep(0.0, seconds=60)
    assert machine.run(3.0) == 1


def test_short_work_between_rests_adds_up_to_a_look() -> None:
    torch.set_num_threads(4)
    machine = Machine(4)
    for _ in range(40):
        machine.sleep(0.0, seconds=2.0)
        machine.cores.adapt()
        machine.now += LOOK_SECONDS / 5
        machine.own += LOOK_SECONDS / 5
        machine.total += 4 * LOOK_SECONDS / 5
        machine.cores.adapt()
    assert machine.cores.num_threads == 1


def test_what_others_use_does_not_count_against_a_quota() -> None:
    """A container with two cores' time on four: what two others use leaves it its two."""
    torch.set_num_threads(4)
    machine = Machine(4, quota=2.0)
    assert machine.run(2.0) == 2
    assert machine.run(0.0) == 2
    assert machine.run(3.0) == 1


def test_a_machine_that_does_not_tell_keeps_its_threads() -> None:
    torch.set_num_threads(2)
    now = [0.0]
    cores = FreeCores(2, num_cores=2, read=lambda: None, clock=lambda: now[0])
    now[0] = 60.0
    cores.adapt()
    assert cores.num_threads == torch.get_num_threads() == 2


def test_real_neighbours_are_seen() -> None:
    """Reads the real counters: as many busy processes as there are cores leave one thread."""
    most = usable_cores()
    assert most <= (os.cpu_count() or 1)
    assert read_cpu_times() is not None
    torch.set_num_threads(most)
    cores = FreeCores(most)

    def has_given_way() -> bool:
        cores.adapt()
        return cores.num_threads == 1

    with busy_neighbours(len(os.sched_getaffinity(0))):
        eventually(has_given_way, what="one thread")
