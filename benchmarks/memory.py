r"""Measures the memory of an engine that loads a checkpoint and runs a workload, on Linux.

    python -m benchmarks.memory --model DIR --workload FILE.jsonl --dtype f32|bf16|int8 --threads N

It prints one JSON line, in MiB: the process's memory before the engine, at most while loading, after loading,
and at most while running; the weights and the KV cache as the engine counts them; and the larger peak less
these two.
"""

import argparse
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.offline import run_together
from benchmarks.workloads import read_workload
from worker.engine.engine import Engine
from worker.engine.engine_thread import EngineThread
from worker.engine.requests.config import DTYPES, EngineConfig
from worker.engine.requests.errors import EngineError

PROCESS = Path("/proc/self")


def memory_mb(field: str) -> float:
    """Return a field of the process's status: VmRSS now, or VmHWM, the peak."""
    found = re.search(rf"^{field}:\s+(\d+) kB$", (PROCESS / "status").read_text(), re.MULTILINE)
    if found is None:
        raise OSError(f"{PROCESS}/status has no {field}")
    return int(found[1]) / 1024


def forget_peak() -> None:
    """Let the peak start again from what the process takes now."""
    (PROCESS / "clear_refs").write_text("5")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True, help="Hugging Face checkpoint directory")
    parser.add_argument("--workload", type=Path, required=True, help="JSON lines")
    parser.add_argument("--dtype", choices=DTYPES, default="bf16")
    parser.add_argument("--threads", type=int, default=None, help="default: torch's own choice")
    options = parser.parse_args(arguments)
    try:
        items = read_workload(options.workload)
        forget_peak()
        result = {"start_mb": memory_mb("VmRSS")}
        config = EngineConfig(model=options.model, dtype=options.dtype, num_threads=options.threads)
        engine = EngineThread(lambda: Engine(config))  # as a worker loads it: memory is another thread's
        engine.start()
        result |= {"load_peak_mb": memory_mb("VmHWM"), "loaded_mb": memory_mb("VmRSS")}
        forget_peak()
        run_together(engine, items)
        result["run_peak_mb"] = memory_mb("VmHWM")
        engine.stop()
    except (EngineError, OSError, KeyError, ValueError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2
    info = engine.model_info
    result |= {"weights_mb": info.weight_bytes / 2**20, "kv_cache_mb": info.kv_cache_bytes / 2**20}
    peak = max(result["load_peak_mb"], result["run_peak_mb"])
    result["beside_mb"] = peak - result["weights_mb"] - result["kv_cache_mb"]
    print(json.dumps({key: round(value, 1) for key, value in result.items()}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
