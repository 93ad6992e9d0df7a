import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from kernels import benchmarking, gemlite_rival
from kernels.benchmarking import ABSENT, NONE, LeastWork, ResultTable, Timing
from kernels.gemlite_rival import time_gemlite
from kernels.quantization import QuantizedWeight, quantize_fp8, quantize_int4, quantize_int8, quantize_nf4

BENCHES = sorted(path.parent.name for path in (Path(benchmarking.__file__).parent).glob("*/bench.py"))


@pytest.fixture(autouse=True)
def _a_chip(monkeypatch: pytest.MonkeyPatch) -> None:
    """It copies a megabyte a second, and makes a thousand operations."""
    monkeypatch.setattr(benchmarking, "copy_bandwidth", lambda: 1e6)
    monkeypatch.setattr(
        benchmarking, "matmul_peak", lambda dtype: {torch.bfloat16: 1e3, torch.int8: 2e3}[dtype]
    )
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Some GPU/2")


@pytest.mark.skipif(torch.cuda.is_available(), reason="it would run")
@pytest.mark.parametrize("op", BENCHES)
def test_without_a_gpu_a_bench_says_so(op: str) -> None:
    with pytest.raises(SystemExit, match="torch finds no GPU here"):
        importlib.import_module(f"kernels.{op}.bench").main()


def test_a_row_says_shares_ratios_and_what_is_absent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = ResultTable("some_op", ["torch", "gemlite"])
    half_a_second = Timing(5e5)
    table.row("a", half_a_second, LeastWork(250_000), {"torch": Timing(1e6), "gemlite": ABSENT})
    work = LeastWork(100_000, operations=300, dtype=torch.int8)
    table.row("b", half_a_second, work, {"torch": NONE, "gemlite": Timing(2.5e5)})
    lines = [
        "|  | us | of copy | of peak | x torch | x gemlite |",
        "| --- | --- | --- | --- | --- | --- |",
        "| a | 500000.0 | 50% | - | 2.00 | absent |",
        "| b | 500000.0 | 20% | 30% | - | 0.50 |",
    ]
    assert capsys.readouterr().out.splitlines() == lines
    file = table.write(tmp_path)
    assert file == tmp_path / "measured" / "Some_GPU_2.md"
    text = file.read_text()
    assert text.startswith("# some_op on Some GPU/2, 20")
    assert text.endswith("\n".join(lines) + "\n")


def test_a_row_has_all_rivals_of_its_table() -> None:
    with pytest.raises(ValueError, match=r"some_op: rivals are \['cuBLAS'\], not \['torch'\]"):
        ResultTable("some_op", ["torch"]).row("a", Timing(1), LeastWork(1), {"cuBLAS": Timing(1)})


def test_without_gemlite_its_column_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    weight = quantize_int8(torch.randn(4, 8))
    assert time_gemlite(torch.ones(1, 8), weight, torch.ones(1, 4)) == ABSENT


class Layers(ModuleType):
    """gemlite.helper, as far as it is called: a weight is `(level - zero) * scale` by group."""

    def __init__(self) -> None:
        super().__init__("gemlite.helper")
        self.made: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("A"):
            raise AttributeError(name)

        class Maker:
            def __init__(_, dtype: torch.dtype) -> None:  # noqa: N805
                assert dtype is torch.bfloat16
                self.made.append(name)

            def from_weights(_, levels: Tensor, scales: Tensor, zeros: Tensor | None = None) -> Any:  # noqa: N805
                assert (levels.dtype is torch.uint8) == (zeros is not None)
                groups = levels.float().view(len(scales), -1)
                dense = (groups - (0 if zeros is None else zeros.float())) * scales.float()
                return lambda x: (x.float() @ dense.view(levels.shape).T).bfloat16()

        return Maker


@pytest.mark.parametrize(
    ("quantize", "quantizes_tokens", "name"),
    [
        (quantize_int4, False, "A16W4_HQQ_INT"),
        (lambda weight: quantize_int4(weight, is_symmetric=False), False, "A16W4_HQQ_INT"),
        (quantize_int8, False, "A16W8_INT8"),
        (quantize_int8, True, "A8W8_int8_dynamic"),
        (quantize_fp8, False, "A16W8_FP8"),
        (quantize_fp8, True, "A8W8_fp8_dynamic"),
    ],
)
def test_gemlite_gets_the_same_weight(
    quantize: Any, quantizes_tokens: bool, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    layers = Layers()
    monkeypatch.setattr("importlib.util.find_spec", lambda _: True)
    monkeypatch.setitem(sys.modules, "gemlite", ModuleType("gemlite"))
    monkeypatch.setitem(sys.modules, "gemlite.helper", layers)
    monkeypatch.setattr(gemlite_rival, "time_call", lambda call: Timing(len(call())))
    weight: QuantizedWeight = quantize(torch.randn(6, 128) / 8)
    x = torch.randn(3, 128).bfloat16()
    expected = x.float() @ weight.dequantize().T
    assert time_gemlite(x, weight, expected, quantizes_tokens=quantizes_tokens) == Timing(3)
    assert layers.made == [name]
    with pytest.raises(AssertionError, match="not close"):
        time_gemlite(x, weight, expected + 1, quantizes_tokens=quantizes_tokens)
    assert time_gemlite(x, quantize_nf4(torch.randn(6, 128)), expected) == NONE
