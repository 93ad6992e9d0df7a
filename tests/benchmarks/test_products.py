import json
from pathlib import Path

import pytest
import torch

from benchmarks.products import main
from kernels.product_chain.op import is_available
from tests.fixtures.benchmark_docs import documented_fields
from tests.fixtures.tiny_llama import write_tiny_llama

pytestmark = pytest.mark.skipif(not is_available(), reason="products do not run in chains here")


@pytest.mark.parametrize("dtype", ["f32", "int8"])
def test_products_are_timed_in_each_way(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], dtype: str
) -> None:
    write_tiny_llama(tmp_path)
    before = torch.get_num_threads()

    options = ["--model", str(tmp_path), "--dtype", dtype, "--threads", "2", "--rounds", "1"]
    assert main([*options, "--rows", "3", "9"]) == 0

    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found.keys() == {"most_g_s", "rows"}
    assert found["most_g_s"].keys() == {"1", "2"}
    assert found["rows"].keys() == {"3", "9"}
    assert all(one.keys() == documented_fields("products") for one in found["rows"].values())
    assert all(value > 0 for value in found["most_g_s"].values())
    assert all(one[f"{way}_ms"] > 0 for one in found["rows"].values() for way in ("one", "apart", "shared"))
    assert torch.get_num_threads() == before


def test_a_missing_model_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--model", str(tmp_path / "none")]) == 2
    assert "none" in capsys.readouterr().err


def test_no_thread_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_tiny_llama(tmp_path)

    assert main(["--model", str(tmp_path), "--threads", "0"]) == 2
    assert "positive" in capsys.readouterr().err
