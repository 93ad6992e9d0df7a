"""Counts the cores that this process may use: by affinity, by cpuset and by the quota of control groups."""

import math
import os
from pathlib import Path


def usable_cores(root: Path = Path("/")) -> int:
    """Return the number of cores that affinity and control groups let this process use."""
    return max(1, int(min(count_cores(root), read_quota(root))))


def count_cores(root: Path = Path("/")) -> int:
    """Return the number of cores with a CPU that this process may run on, by affinity and cpuset.

    CPUs of one core (hyperthreads) share its arithmetic units, so a second thread there gains nothing.
    """
    if not hasattr(os, "sched_getaffinity"):
        return os.cpu_count() or 1
    folder = root / "sys/devices/system/cpu"
    cpus = os.sched_getaffinity(0)
    return len({_text(folder / f"cpu{cpu}/topology/thread_siblings_list") or cpu for cpu in cpus})


def read_quota(root: Path = Path("/")) -> float:
    """Return how many cores' time control groups, of version 2 or 1, allow; infinite without a limit.

    Each group limits all groups in it. A container may see the path that its group has on the host, where
    nothing is, and its own group at the top.
    """
    least = math.inf
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        top = root / "sys/fs/cgroup" / controllers
        group = top / path.strip("/")
        for folder in (group, *group.parents):
            least = min(least, _limit_of(folder))
            if folder == top:
                break
    return least


def _limit_of(group: Path) -> float:
    """Return the cores that one control group allows, of either version."""
    words = _text(group / "cpu.max").split()
    quota, period = words or (_text(group / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() else math.inf


def _text(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""
