import json
from pathlib import Path

import pytest

from benchmarks.readings import main
from tests.fixtures.benchmark_docs import documented_fields
from tests.fixtures.tiny_llama import write_tiny_llama


@pytest.mark.slow
@pytest.mark.parametrize("rate", ["0", "500"])
def test_each_named_policy_runs_everything(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], rate: str
) -> None:
    write_tiny_llama(tmp_path, max_position_embeddings=256)
    capsys.readouterr()
    options = ["--readings", "24", "--generation", "2", "--threads", "1", "--rate", rate]
    assert main(["--model", str(tmp_path), *options, "--policy", "adaptive", "fixed"]) == 0
    adaptive, fixed = map(json.loads, capsys.readouterr().out.splitlines())
    assert (adaptive["policy"], fixed["policy"]) == ("adaptive", "fixed")
    for result in (adaptive, fixed):
        assert result.keys() - {"policy"} == documented_fields("readings")
        assert 0 < result["median_s"] <= result["p99_s"] <= result["seconds"]
        assert result["steps"] >= 200  # as many as the generation beside them takes


def test_a_wrong_checkpoint_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--model", str(tmp_path / "nowhere")]) == 2
    assert "nowhere" in capsys.readouterr().err
