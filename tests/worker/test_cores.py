"""Cores are counted as affinity, hyperthreads and control groups allow."""

import math
import os
from pathlib import Path

import pytest

from worker.cores import count_cores, read_quota, usable_cores


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
