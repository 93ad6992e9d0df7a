import json

import pytest

from benchmarks import gpu_engine


def test_it_runs_where_there_is_no_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    """All but the profile and the peer, on a small model."""
    arguments = [
        "--device",
        "cpu",
        "--dtype",
        "int8",
        "--size",
        "small",
        "--requests",
        "3",
        "--lengths",
        "9/2,5/4",
    ]
    assert gpu_engine.main(arguments) == 0
    rows = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [(row["in"], row["out"]) for row in rows] == [(9, 2), (5, 4)]
    assert all(row["out_tok_s"] > 0 for row in rows)


def test_what_a_device_cannot_run_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu_engine.main(["--device", "cpu", "--dtype", "fp8", "--size", "small", "--requests", "1"]) == 2
    assert "dtype fp8 needs device 'cuda'" in capsys.readouterr().err


def test_overlapping_spans_count_once() -> None:
    assert gpu_engine.covered(iter([(5.0, 7.0), (0.0, 2.0), (1.0, 3.0), (5.5, 6.0)])) == 5.0
