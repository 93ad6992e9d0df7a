import json
import sys
from pathlib import Path

import pytest

from benchmarks.python_lock import main
from tests.fixtures.benchmark_docs import documented_fields
from tests.fixtures.tiny_llama import write_tiny_llama


def test_steps_are_timed_beside_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_tiny_llama(tmp_path)
    workload = tmp_path / "work.jsonl"
    rows = [{"id": i, "prompt_ids": [5, 6, 7 + i], "text": "", "max_tokens": 8} for i in range(4)]
    workload.write_text("".join(json.dumps(row) + "\n" for row in rows))
    before = sys.getswitchinterval()

    assert main(["--model", str(tmp_path), "--workload", str(workload), "--dtype", "f32"]) == 0

    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found.keys() == {"others_0", "others_1", "others_2"}
    assert found["others_0"].keys() == {"5"}
    assert found["others_1"].keys() == found["others_2"].keys() == {"5", "0.5", "0.2", "0.1"}
    figures = [one for by_time in found.values() for one in by_time.values()]
    assert all(one.keys() == documented_fields("python_lock") for one in figures)
    assert all(one["step_ms"] > 0 for one in figures)
    assert all(one["others_m_s"] > 0 for one in found["others_2"].values())
    assert sys.getswitchinterval() == before


def test_a_missing_workload_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_tiny_llama(tmp_path)

    assert main(["--model", str(tmp_path), "--workload", str(tmp_path / "none"), "--dtype", "f32"]) == 2
    assert "none" in capsys.readouterr().err
