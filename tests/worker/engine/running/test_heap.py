import json
import platform
import subprocess
import sys
from pathlib import Path

import pytest

ONLY_GLIBC = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has these options")

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


# Loads a model on a thread of its own, as a worker does; prints its MiB, and those of its KV cache.
ENGINE_SCRIPT = """
import json, sys, threading
from pathlib import Path
from benchmarks.memory import memory_mb
from worker.engine.engine import Engine
from worker.engine.requests.config import EngineConfig

def load(num_blocks):
    global engine
    engine = Engine(EngineConfig(model=Path(sys.argv[1]), num_threads=1, num_blocks=num_blocks))

for num_blocks in 64, 80_000:
    before = memory_mb("VmRSS")
    thread = threading.Thread(target=load, args=(num_blocks,))
    thread.start()
    thread.join()
    after = memory_mb("VmRSS")
print(json.dumps([after - before, engine.model_info.kv_cache_bytes >> 20]))
"""


@ONLY_GLIBC
def test_loading_leaves_the_memory_of_the_weights_only() -> None:
    small, usual = (
        float(subprocess.run([sys.executable, "-c", SCRIPT, heap], capture_output=True, check=True).stdout)
        for heap in ("small", "usual")
    )

    assert 80 <= small < 90 < usual


@ONLY_GLIBC
@pytest.mark.usefixtures("only_on_cpu")
def test_an_empty_kv_cache_takes_no_memory(tiny_llama: Path) -> None:
    command = [sys.executable, "-c", ENGINE_SCRIPT, str(tiny_llama)]
    taken, kv_cache = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)

    assert taken < 20
    assert kv_cache > 150
