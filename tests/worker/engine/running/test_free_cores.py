"""The engine gives way on cores that other programs use, and comes back when they stop."""

import math
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from benchmarks.neighbours import busy_neighbours
from tests.fixtures.deployment import eventually
from worker.engine.running.free_cores import (
    LOOK_SECONDS,
    CpuTimes,
    FreeCores,
    count_cores,
    read_cpu_times,
    read_quota,
    usable_cores,
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


def test_what_others_use_does_not_count_against_a_quota() -> None:
    """A container with two cores' time on four: what two others use leaves it its two."""
    torch.set_num_threads(4)
    machine = Machine(4, quota=2.0)
    assert machine.run(2.0) == 2
    assert machine.run(0.0) == 2
    assert machine.run(3.0) == 1


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a test puts files of /proc and /sys, for a process that may run on CPUs 0 to 7."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    return tmp_path


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{text}\n")


def test_hyperthreads_of_one_core_count_once(root: Path) -> None:
    assert count_cores(root) == 8  # a system that does not tell
    siblings = "sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    write(root, {siblings.format(cpu): f"{cpu % 6},{cpu % 6 + 6}" for cpu in range(12)})
    assert count_cores(root) == usable_cores(root) == 6


V2, V1 = "0::/", "3:cpuset:/\n2:cpu,cpuacct:/pod/job\n0::/"


@pytest.mark.parametrize(
    ("groups", "files", "quota"),
    [
        (V2, {}, math.inf),
        (V2, {"cpu.max": "max 100000"}, math.inf),
        (V2, {"cpu.max": "150000 100000"}, 1.5),
        ("0::/pod/job", {"pod/job/cpu.max": "300000 100000"}, 3.0),
        ("0::/pod/job", {"pod/cpu.max": "200000 100000", "pod/job/cpu.max": "max 100000"}, 2.0),
        ("0::/on/the/host", {"cpu.max": "50000 100000"}, 0.5),
        (V1, {"cpu,cpuacct/pod/job/cpu.cfs_quota_us": "-1"}, math.inf),
        (
            V1,
            {
                "cpu,cpuacct/pod/cpu.cfs_quota_us": "400000",
                "cpu,cpuacct/pod/cpu.cfs_period_us": "100000",
                "cpu.max": "700000 100000",
            },
            4.0,
        ),
    ],
    ids=str,
)
def test_quotas_of_control_groups(root: Path, groups: str, files: dict[str, str], quota: float) -> None:
    write(root, {"proc/self/cgroup": groups})
    write(root, {f"sys/fs/cgroup/{name}": text for name, text in files.items()})
    assert read_quota(root) == quota
    assert usable_cores(root) == min(8, max(1, int(min(quota, 8))))


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
