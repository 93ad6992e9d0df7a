import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from kernels import tuning
from kernels.crossover import Regime, launched_regimes, read_crossover

GEMV, TILE, DENSE = Regime("gemv", None), Regime("tile", None, block_m=16), Regime("dense", None)


def test_a_table_is_written_and_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Some GPU/2")
    monkeypatch.setattr(tuning, "chip_name", lambda _: "sm_123")
    found = {1: GEMV, 2: GEMV, 16: TILE, 64: DENSE, 256: DENSE}
    assert tuning.write_crossover(tmp_path, {"int4": found}) == tmp_path / "sm_123.json"
    table = read_crossover(tmp_path, "sm_123")
    assert (table.chip, table.gpu) == ("sm_123", "Some GPU/2")
    assert table.measured is not None
    assert [(one.kind, one.max_tokens) for one in table.formats["int4"]] == [
        ("gemv", 2),
        ("tile", 16),
        ("dense", None),
    ]
    chosen = [table.choose("int4", num_tokens).kind for num_tokens in (1, 2, 3, 16, 17, 9999)]
    assert chosen == ["gemv", "gemv", "tile", "tile", "dense", "dense"]


def test_an_unknown_gpu_gets_the_default(tmp_path: Path) -> None:
    rows = [{"kind": "dense", "max_tokens": None}]
    (tmp_path / "default.json").write_text(
        json.dumps({"gpu": "any", "measured": None, "formats": {"int8": rows}})
    )
    assert read_crossover(tmp_path, "nobody's").choose("int8", 5) == DENSE


def test_a_chip_launches_its_own_table_and_no_other(tmp_path: Path) -> None:
    rows = {"default": [asdict(DENSE)], "sm_90": [asdict(TILE) | {"max_tokens": 8}, asdict(DENSE)]}
    for name, table in rows.items():
        (tmp_path / f"{name}.json").write_text(
            json.dumps({"gpu": name, "measured": None, "formats": {"int8": table}})
        )
    assert launched_regimes(tmp_path, "int8", ("sm_80", "sm_90")) == [
        (DENSE, ("sm_80", "sm_90")),
        (replace(TILE, max_tokens=8), ("sm_90",)),
    ]
    assert launched_regimes(tmp_path, "int8", ("sm_80",)) == [(DENSE, ("sm_80",))]


@pytest.mark.parametrize("limits", [[4, 2, None], [4, 4, None], [4], [None, None], []])
def test_a_table_with_a_gap_is_refused(limits: list[int | None], tmp_path: Path) -> None:
    rows = [{"kind": "dense", "max_tokens": limit} for limit in limits]
    (tmp_path / "default.json").write_text(
        json.dumps({"gpu": "any", "measured": None, "formats": {"int8": rows}})
    )
    with pytest.raises(ValueError, match="max_tokens must rise"):
        read_crossover(tmp_path, f"gpu {limits}")


def test_splits_fill_the_gpu_and_never_starve_a_split() -> None:
    regime = Regime("tile", None, block_n=64, block_k=64, num_programs=264)
    assert regime.num_splits(4096, 4096) == 4
    assert regime.num_splits(28672, 4096) == 1
    assert regime.num_splits(64, 1024) == 4
    assert Regime("tile", None).num_splits(64, 4096) == 1
