import json
from pathlib import Path

import pytest
import torch

from benchmarks.step_profile import Stopwatch, main
from kernels.product_chain import is_available
from tests.fixtures.benchmark_docs import documented_fields
from tests.fixtures.tiny_llama import write_tiny_llama
from worker.engine.engine import Engine

PARTS = {
    "add requests",
    "schedule",
    "build input",
    "embedding",
    "norms",
    "qkv",
    "attention out",
    "gate up",
    "down",
    "head",
    "attention",
    "rotation, kv write",
    "activation",
    "sampling",
    "model host",
    "runner host",
    "step host",
}
# Parts that cannot be told apart where the layers run in one region.
CHAINED = {"attention out", "gate up", "activation", "down", "attention", "rotation, kv write"}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bf16", "int8"])
def test_parts_add_up_to_the_whole(tmp_path: Path, dtype: str, capsys: pytest.CaptureFixture[str]) -> None:
    write_tiny_llama(tmp_path)
    rows = [{"id": i, "prompt_ids": [5 + i] * 9, "text": "", "max_tokens": 12} for i in range(4)]
    workload = tmp_path / "work.jsonl"
    workload.write_text("".join(json.dumps(row) + "\n" for row in rows))
    step = Engine.step
    paths = ["--model", str(tmp_path), "--workload", str(workload)]
    assert main([*paths, "--dtype", dtype, "--threads", "1"]) == 0
    assert Engine.step is step, "nothing stays instrumented"
    *table, line = capsys.readouterr().out.splitlines()
    result = json.loads(line)
    assert result.keys() == documented_fields("step_profile")
    in_chains = is_available(torch.int8 if dtype == "int8" else torch.bfloat16)
    parts = (PARTS - CHAINED) | {"layers", "chains"} if in_chains else PARTS
    assert set(result["parts_s"]) >= parts
    assert all(seconds > 0 for seconds in result["parts_s"].values())
    assert 0.8 * result["profiled_s"] < sum(result["parts_s"].values()) <= 1.01 * result["profiled_s"]
    assert result["calls"]["head"] == result["steps"]
    assert len(table) == len(result["parts_s"]) + 1


def test_a_part_is_without_the_parts_inside_it() -> None:
    stopwatch = Stopwatch()
    inner = stopwatch.around("inner", lambda: sum(range(300_000)))
    outer = stopwatch.around("outer", lambda: inner() + inner())
    outer()
    assert stopwatch.calls == {"inner": 2, "outer": 1}
    assert stopwatch.seconds["outer"] < stopwatch.seconds["inner"] / 2
    with pytest.raises(ZeroDivisionError):
        stopwatch.around("broken", lambda: 1 / 0)()
    stopwatch.clear()
    assert not stopwatch.seconds
