import json
from pathlib import Path

import pytest
import torch
from triton.runtime.errors import OutOfResources

from kernels.crossover import Regime, read_crossover
from kernels.tuning import runnable, write_crossover

SMALL, LARGE, HUGE = (Regime("tile", None, block_m=rows) for rows in (16, 64, 256))


def run_small(regime: Regime) -> None:
    if regime.block_m > LARGE.block_m:
        raise OutOfResources(regime.block_m, LARGE.block_m, "shared memory")


def fail(regime: Regime) -> None:
    raise ZeroDivisionError(regime.kind)


def test_a_regime_that_the_gpu_has_no_room_for_is_left_out() -> None:
    assert runnable([SMALL, HUGE, LARGE], run_small) == [SMALL, LARGE]


def test_any_other_failure_is_told() -> None:
    with pytest.raises(ZeroDivisionError):
        runnable([SMALL], fail)


def test_neighbours_with_one_regime_are_one_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Some GPU/2")
    file = write_crossover(tmp_path, {"fp8": {1: SMALL, 64: LARGE, 16: SMALL, 256: LARGE}})
    assert file.name == "Some_GPU_2.json"
    assert [row["max_tokens"] for row in json.loads(file.read_text())["formats"]["fp8"]] == [16, None]
    found = read_crossover(tmp_path, "Some GPU/2")
    assert [found.choose("fp8", count).block_m for count in (1, 16, 17, 10_000)] == [16, 16, 64, 64]
