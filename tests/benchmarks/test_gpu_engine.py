from pathlib import Path

import pytest

from benchmarks import gpu_engine
from tests.fixtures.tiny_llama import write_tiny_llama
from worker.engine.requests.config import EngineConfig


def test_it_measures_where_there_is_no_gpu(tmp_path: Path) -> None:
    """All but the profile and the peer."""
    config = EngineConfig(write_tiny_llama(tmp_path), dtype="f32", num_threads=1)
    rows = gpu_engine.measure(config.model, config, [(9, 2), (5, 4)], 3)
    assert [(row["in"], row["out"]) for row in rows] == [(9, 2), (5, 4)]
    assert all(row["out_tok_s"] > 0 for row in rows)


def test_lengths_are_checked(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        gpu_engine.main(["--lengths", "128x128"])
    assert "--lengths: '128x128' is not IN/OUT" in capsys.readouterr().err


def test_overlapping_spans_count_once() -> None:
    assert gpu_engine.covered(iter([(5.0, 7.0), (0.0, 2.0), (1.0, 3.0), (5.5, 6.0)])) == 5.0
