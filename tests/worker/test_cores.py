"""Cores are counted as affinity, hyperthreads and control groups allow."""

import math
import os
from pathlib import Path

import pytest

from worker.cores import (
    count_cores,
    divide_cores,
    last_cache_bytes,
    numa_nodes,
    read_quota,
    usable_cores,
)


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


def test_cores_are_divided_by_node_and_whole(root: Path) -> None:
    assert numa_nodes(root) == [set(range(8))]  # a system that does not tell
    assert divide_cores(3, root) == [{0, 1}, {2, 3, 4}, {5, 6, 7}]
    # CPUs 0 and 4 are one core, and so on; two cores in each node; node 2 has none of our CPUs.
    siblings = "sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    write(root, {siblings.format(cpu): f"{cpu % 4},{cpu % 4 + 4}" for cpu in range(8)})
    nodes = {"node0": "0-1,4-5", "node1": "2-3,6-7,9", "node2": "10-11", "node10": ""}
    write(root, {f"sys/devices/system/node/{name}/cpulist": text for name, text in nodes.items()})
    assert numa_nodes(root) == [{0, 1, 4, 5}, {2, 3, 6, 7}]
    assert divide_cores(1, root) == [set(range(8))]
    assert divide_cores(2, root) == [{0, 1, 4, 5}, {2, 3, 6, 7}]
    assert divide_cores(3, root) == [{0, 4}, {1, 5}, {2, 3, 6, 7}]
    assert divide_cores(4, root) == [{0, 4}, {1, 5}, {2, 6}, {3, 7}]
    with pytest.raises(ValueError, match="this process may use 4 cores"):
        divide_cores(5, root)


def test_cpus_that_no_node_names_are_used_too(root: Path) -> None:
    write(root, {"sys/devices/system/node/node0/cpulist": "0-5"})
    assert divide_cores(2, root) == [{0, 1, 2, 3}, {4, 5, 6, 7}]


def test_the_last_cache_is_the_largest(root: Path) -> None:
    assert last_cache_bytes(root) == 32 << 20  # a system that does not tell
    sizes = {"index0": "48K", "index2": "1024K", "index3": "16384K", "index4": "unknown"}
    write(root, {f"sys/devices/system/cpu/cpu0/cache/{name}/size": size for name, size in sizes.items()})
    assert last_cache_bytes(root) == 16 << 20


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
