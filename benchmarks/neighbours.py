"""Describes the machine of a measurement, and keeps some of its cores busy as other programs would."""

import contextlib
import platform
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

# The vector extensions that decide how fast a matrix product can be, by the names that Linux gives them.
FEATURES = (
    "avx2",
    "avx512f",
    "avx512_vnni",
    "avx512_bf16",
    "amx_bf16",
    "amx_int8",
    "asimd",
    "i8mm",
    "bf16",
    "sve",
)
# Ends by itself when its parent is gone, so that no interrupted measurement leaves one behind.
BUSY = """
import os
parent = os.getppid()
while os.getppid() == parent:
    for _ in range(1_000_000):
        pass
"""


@contextlib.contextmanager
def busy_neighbours(count: int) -> Iterator[None]:
    """Run `count` processes beside the block, each of which computes on one core without a pause."""
    neighbours = [subprocess.Popen([sys.executable, "-I", "-c", BUSY]) for _ in range(count)]
    try:
        yield
    finally:
        for neighbour in neighbours:
            neighbour.kill()
            neighbour.wait()


def features() -> list[str]:
    """Return which of FEATURES this machine's processor has; none where Linux does not say."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    said = next((line for line in lines if line.lower().startswith(("flags", "features"))), "")
    has = set(said.partition(":")[2].split())
    return [name for name in FEATURES if name in has]


def machine(num_cores: int | None) -> str:
    """Return architecture, number of cores and features in one line."""
    return " ".join([platform.machine(), f"{num_cores} cores", *features()])
