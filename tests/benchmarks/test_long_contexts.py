import json
from pathlib import Path

import pytest
import torch

from benchmarks.long_contexts import main
from tests.fixtures.benchmark_docs import documented_fields
from tests.fixtures.tiny_llama import write_tiny_llama


@pytest.mark.parametrize("dtype", ["f32", "int8"])
def test_contexts_are_timed(tmp_path: Path, capsys: pytest.CaptureFixture[str], dtype: str) -> None:
    write_tiny_llama(tmp_path)
    before = torch.get_num_threads()

    options = ["--model", str(tmp_path), "--dtype", dtype, "--threads", "2", "--rounds", "1"]
    assert main([*options, "--contexts", "2", "90"]) == 0

    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found.keys() == {"2", "90"}
    assert all(one.keys() == documented_fields("long_contexts") for one in found.values())
    assert all(value > 0 for one in found.values() for value in one.values())
    assert torch.get_num_threads() == before


def test_a_missing_model_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--model", str(tmp_path / "none")]) == 2
    assert "none" in capsys.readouterr().err


def test_a_context_that_the_model_does_not_take_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_tiny_llama(tmp_path)

    assert main(["--model", str(tmp_path), "--threads", "1", "--contexts", "129"]) == 2
    assert "129 is not within 2..128" in capsys.readouterr().err
