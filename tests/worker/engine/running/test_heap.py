import platform
import subprocess
import sys

import pytest

# Makes 40 weights of 2 MiB, each of a larger tensor that goes at once; prints the MiB that are left of it.
SCRIPT = """
import sys, torch
from contextlib import nullcontext
from benchmarks.memory import memory_mb
from worker.engine.running.heap import small_heap

torch.zeros(1).sum()
before, weights = memory_mb("VmRSS"), []
with small_heap() if sys.argv[1] == "small" else nullcontext():
    for number in range(40):
        whole = torch.zeros(4 + number // 2 << 20, dtype=torch.int8).fill_(1)
        weights.append(whole[: 2 << 20].clone())
        del whole
print(memory_mb("VmRSS") - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has these options")
def test_loading_leaves_the_memory_of_the_weights_only() -> None:
    small, usual = (
        float(subprocess.run([sys.executable, "-c", SCRIPT, heap], capture_output=True, check=True).stdout)
        for heap in ("small", "usual")
    )

    assert 80 <= small < 90 < usual
