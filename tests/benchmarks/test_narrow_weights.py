import json
from pathlib import Path

import pytest
import torch

from benchmarks.narrow_weights import main
from kernels.product_chain.op import is_available
from tests.fixtures.benchmark_docs import documented_fields
from tests.fixtures.tiny_llama import write_tiny_llama

pytestmark = pytest.mark.skipif(not is_available(), reason="products do not run in chains here")


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_every_format_is_timed(tmp_path: Path, capsys: pytest.CaptureFixture[str], dtype: str) -> None:
    write_tiny_llama(tmp_path, hidden_size=64, intermediate_size=128)
    before = torch.get_num_threads()

    options = ["--model", str(tmp_path), "--dtype", dtype, "--threads", "2", "--rounds", "1"]
    assert main([*options, "--rows", "1", "9"]) == 0

    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (found["dtype"], found["threads"]) == (dtype, 2)
    assert found["milliseconds"].keys() == {"1", "9"}
    for times in found["milliseconds"].values():
        assert times.keys() == documented_fields("narrow_weights")
        assert all(value > 0 for value in times.values())
    assert torch.get_num_threads() == before


def test_a_missing_model_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--model", str(tmp_path / "none")]) == 2
    assert "none" in capsys.readouterr().err
