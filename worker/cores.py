"""Counts the cores that this process may use: by affinity, by cpuset and by the quota of control groups.

It also divides them between several workers, so that each has its memory near, and tells the size of caches.
"""

import math
import os
import re
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

USUAL_CACHE_BYTES = 32 << 20  # of the last cache before memory


def usable_cores(root: Path = Path("/")) -> int:
    """Return the number of cores that affinity and control groups let this process use."""
    return max(1, int(min(count_cores(root), read_quota(root))))


def count_cores(root: Path = Path("/")) -> int:
    """Return the number of cores with a CPU that this process may run on, by affinity and cpuset.

    CPUs of one core (hyperthreads) share its arithmetic units, so a second thread there gains nothing.
    """
    if not hasattr(os, "sched_getaffinity"):
        return os.cpu_count() or 1
    return len(_cores(os.sched_getaffinity(0), root))


def divide_cores(count: int, root: Path = Path("/")) -> list[set[int]]:
    """Divide the CPUs that this process may run on into as many groups of whole cores, of one size or nearly.

    A group lies within one NUMA node where the nodes' cores divide so. Linux gives a process memory of the
    node that it runs on.

    Raises:
        ValueError: there are fewer cores, or the system binds no process to CPUs.

    """
    if not hasattr(os, "sched_getaffinity"):
        raise ValueError("this system binds no process to CPUs")
    allowed = os.sched_getaffinity(0)
    cores = [core for node in numa_nodes(root) for core in _cores(allowed & node, root)]
    if count > len(cores):
        raise ValueError(f"this process may use {len(cores)} cores")
    ends = [len(cores) * number // count for number in range(count + 1)]
    return [set().union(*cores[start:end]) for start, end in pairwise(ends)]


def numa_nodes(root: Path = Path("/")) -> list[set[int]]:
    """Return the CPUs that this process may use by NUMA node; in one node where the system tells none."""
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    files = (root / "sys/devices/system/node").glob("node[0-9]*/cpulist")
    numbered = sorted((int(file.parent.name.removeprefix("node")), _text(file)) for file in files)
    nodes = [own for _, text in numbered if (own := allowed & _numbers(text))]
    rest = allowed.difference(*nodes)
    return [*nodes, rest] if rest else nodes


def last_cache_bytes(root: Path = Path("/")) -> int:
    """Return the bytes of the last cache before memory; USUAL_CACHE_BYTES where the system tells none."""
    files = (root / "sys/devices/system/cpu/cpu0/cache").glob("index[0-9]*/size")
    sizes = (_text(file) for file in files)
    return max(
        (1024 * int(size[:-1]) for size in sizes if re.fullmatch(r"\d+K", size)), default=USUAL_CACHE_BYTES
    )


def _cores(cpus: Iterable[int], root: Path) -> list[set[int]]:
    """Return these CPUs by core, in order."""
    folder = root / "sys/devices/system/cpu"
    cores: dict[str, set[int]] = {}
    for cpu in sorted(cpus):
        siblings = _text(folder / f"cpu{cpu}/topology/thread_siblings_list") or str(cpu)
        cores.setdefault(siblings, set()).add(cpu)
    return list(cores.values())


def _numbers(text: str) -> set[int]:
    """Return the numbers of a list such as `0-3,8`."""
    found: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found


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
