"""Checkpoints that the command writes, and what becomes of them in the loader."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from kernels.quantization import quantize_fp8, quantize_int4, quantize_int8, quantize_nf4
from tests.fixtures.generation import greedy, make_engine, requests_for, run
from tests.fixtures.tiny_llama import TEXT, write_tiny_llama
from worker.engine.models.checkpoint import Weights
from worker.engine.models.products import Products
from worker.engine.quantize.__main__ import main
from worker.engine.quantize.calibration import InputRange
from worker.engine.quantize.writer import num_bytes_of
from worker.values.model_files import HEADS_FILE

QUANTIZE = {
    "int8": quantize_int8,
    "int4": lambda weight: quantize_int4(weight, group_size=32),
    "fp8": quantize_fp8,
    "nf4": lambda weight: quantize_nf4(weight, is_nested=True),
}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its sides are whole groups of every format, its tensors in two files."""
    directory = tmp_path_factory.mktemp("plain")
    return write_tiny_llama(
        directory, hidden_size=64, intermediate_size=128, max_shard_size="100KB", dtype=torch.bfloat16
    )


def quantize(model: Path, out: Path, format_: str, *more: str) -> int:
    return main(["--model", str(model), "--out", str(out), "--format", format_, *more])


@pytest.mark.parametrize("format_", QUANTIZE)
def test_the_loader_finds_what_was_rounded(format_: str, plain: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    more = ["--group-size", "32"] if format_ == "int4" else []
    assert quantize(plain, out, format_, *more) == 0
    files = sorted(plain.glob("*.safetensors"))
    assert len(files) > 1
    with Weights(out, torch.float32) as weights:
        for file in files:
            for name, tensor in load_file(file).items():
                expected = tensor.float()
                if name.endswith("_proj.weight"):
                    expected = QUANTIZE[format_](tensor).dequantize()
                    assert not torch.equal(expected, tensor)
                torch.testing.assert_close(weights.take(name, *tensor.shape), expected, rtol=1e-6, atol=1e-7)
    index = json.loads((out / "model.safetensors.index.json").read_text())
    stored = {name: t for file in files for name, t in load_file(out / file.name).items()}
    assert index["metadata"]["total_size"] == sum(t.numel() * t.element_size() for t in stored.values())
    assert set(index["weight_map"]) == set(stored)
    assert (out / "tokenizer.json").read_bytes() == (plain / "tokenizer.json").read_bytes()


@pytest.mark.parametrize("format_", QUANTIZE)
def test_the_engine_runs_what_was_written(format_: str, plain: Path, tmp_path: Path) -> None:
    assert quantize(plain, tmp_path / "out", format_) == 0
    (completion,) = run(make_engine(tmp_path / "out"), requests_for(["the quick brown"], greedy(12)))
    assert completion.error is None
    assert len(completion.token_ids) == 12


def test_int8_products_of_an_int8_checkpoint_are_those_of_the_plain_one(plain: Path, tmp_path: Path) -> None:
    """Quantized a second time as it loads, a level stays what it is."""
    assert quantize(plain, tmp_path / "out", "int8") == 0
    requests = [[7, 8, 9, 10], [20] * 9]
    one, other = (
        [done.token_ids for done in run(make_engine(model, dtype="int8"), requests_for(requests, greedy(20)))]
        for model in (plain, tmp_path / "out")
    )
    assert one == other


@pytest.mark.parametrize("format_", QUANTIZE)
def test_weights_are_named_by_what_they_are_held_in(format_: str, plain: Path, tmp_path: Path) -> None:
    """Not by the setting, nor always by the checkpoint, whose weights the engine may quantize again."""
    assert quantize(plain, tmp_path / "out", format_) == 0
    floats, eight_bits = (make_engine(tmp_path / "out", dtype=dtype).model_info for dtype in ("f32", "int8"))
    if floats.device == "cpu":
        assert floats.quantization == format_
    assert floats.dtype == "f32"
    # A GPU has a product for each format.
    assert eight_bits.quantization == ("int8" if eight_bits.device == "cpu" else format_)
    held = Products(torch.bfloat16, is_gpu=True, device=torch.device("cpu"))
    levels = QUANTIZE[format_](torch.randn(64, 64, generator=torch.Generator().manual_seed(0)))
    assert held.format_of(levels) == format_
    assert held.format_of(torch.zeros(1)) == "bf16"


@pytest.mark.parametrize(("format_", "end"), [("int4", ".weight_packed"), ("fp8", "_proj.weight")])
def test_calibration_changes_only_what_it_should(format_: str, end: str, plain: Path, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text(TEXT * 40)
    assert quantize(plain, tmp_path / "rounded", format_) == 0
    assert quantize(plain, tmp_path / "compensated", format_, "--calibration", str(text)) == 0
    changed = set()
    for file in sorted(plain.glob("*.safetensors")):
        one, other = (load_file(tmp_path / name / file.name) for name in ("rounded", "compensated"))
        assert one.keys() == other.keys()
        changed |= {name for name in one if not torch.equal(one[name], other[name])}
    packed = {name for name in changed if name.endswith(end)}
    assert len(packed) == 14
    assert all(name.endswith((end, ".weight_scale")) for name in changed)


def test_medusa_heads_are_copied_as_they_are(plain: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(plain, model)
    save_file({"heads.0.mlp.down_proj.weight": torch.ones(64, 64)}, model / HEADS_FILE)
    assert quantize(model, tmp_path / "out", "int8") == 0
    assert (tmp_path / "out" / HEADS_FILE).read_bytes() == (model / HEADS_FILE).read_bytes()
    assert num_bytes_of(model) == num_bytes_of(plain)


def test_bad_input_is_named(plain: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    narrow = write_tiny_llama(tmp_path / "narrow")
    assert quantize(narrow, tmp_path / "one", "int4") == 2
    assert "down_proj.weight: does not fit: int4: 96 columns in groups of 64" in capsys.readouterr().err
    assert quantize(tmp_path / "none", tmp_path / "two", "int8") == 2
    assert "no such directory" in capsys.readouterr().err
    assert quantize(plain, tmp_path / "three", "int8") == 0
    assert quantize(tmp_path / "three", tmp_path / "four", "int4") == 2
    assert "the model is already quantized" in capsys.readouterr().err
    assert quantize(plain, tmp_path / "three", "int8") == 2
    assert "not an empty directory" in capsys.readouterr().err
    silent = tmp_path / "silent"
    shutil.copytree(plain, silent)
    (silent / "tokenizer.json").unlink()
    text = tmp_path / "text"
    text.write_text("a")
    assert quantize(silent, tmp_path / "five", "int4", "--calibration", str(text)) == 2
    assert "tokenizer.json" in capsys.readouterr().err
    text.write_text("")
    assert quantize(plain, tmp_path / "six", "int4", "--calibration", str(text)) == 2
    assert "no tokens" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        quantize(plain, tmp_path / "seven", "int8", "--calibration", str(text))
    assert "only int4, fp8, int8-static, auto use it" in capsys.readouterr().err


def test_sizes_are_printed(plain: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert quantize(plain, tmp_path / "out", "int8") == 0
    (line,) = capsys.readouterr().out.splitlines()
    sizes = [
        sum(t.nbytes for f in one.glob("*.safetensors") for t in load_file(f).values())
        for one in (plain, tmp_path / "out")
    ]
    before, after = sizes
    assert line == (
        f"{tmp_path / 'out'}: {before / 1e6:.2f} MB of tensors before, {after / 1e6:.2f} MB after,"
        f" ratio {before / after:.2f}, in int8"
    )


def test_static_ranges_come_from_the_text(plain: Path, tmp_path: Path) -> None:
    """A product's inputs have one scale, those of q, k and v the same."""
    text = tmp_path / "text"
    text.write_text(TEXT * 4)
    assert quantize(plain, tmp_path / "out", "int8-static", "--calibration", str(text)) == 0
    stored = {name: t for f in (tmp_path / "out").glob("*.safetensors") for name, t in load_file(f).items()}
    scales = {name: t for name, t in stored.items() if name.endswith(".input_scale")}
    assert len(scales) == 14
    assert all(t.shape == (1,) and t.dtype == torch.float32 and 0 < t < 1 for t in scales.values())
    first = "model.layers.0.self_attn"
    assert len({float(scales[f"{first}.{name}_proj.input_scale"]) for name in "qkv"}) == 1
    section = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    inputs = section["config_groups"]["group_0"]["input_activations"]
    assert (inputs["dynamic"], inputs["strategy"], section["format"]) == (False, "tensor", "int-quantized")
    (completion,) = run(make_engine(tmp_path / "out"), requests_for(["the quick brown"], greedy(12)))
    assert completion.error is None
    with pytest.raises(SystemExit):
        quantize(plain, tmp_path / "none", "int8-static")


@pytest.mark.parametrize("tail", [0.0, 400.0])
def test_a_range_cuts_off_what_is_rare(tail: float) -> None:
    values = torch.randn(400, 50, generator=torch.Generator().manual_seed(0))
    values[0, 0] = tail
    seen = InputRange()
    for part in torch.split(values, 100):
        seen.add(part)
    scale = seen.scale()
    assert scale is not None

    def error(step: float) -> float:
        return float(((values / step).round().clamp(-127, 127) * step - values).square().sum())

    tried = [float(values.abs().max()) / 127 * share for share in torch.linspace(0.02, 1.2, 60).tolist()]
    assert error(scale) < 1.1 * min(map(error, tried))
    assert InputRange().scale() is None


@pytest.mark.parametrize(("format_", "dtype"), [("fp16", torch.float16), ("bf16", torch.bfloat16)])
def test_floats_are_cast(format_: str, dtype: torch.dtype, plain: Path, tmp_path: Path) -> None:
    assert quantize(plain, tmp_path / "out", format_) == 0
    for file in plain.glob("*.safetensors"):
        found = load_file(tmp_path / "out" / file.name)
        assert all(torch.equal(found[name], t.to(dtype)) for name, t in load_file(file).items())
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config.get("dtype", config.get("torch_dtype")) == str(dtype).removeprefix("torch.")
    assert "quantization_config" not in config
    (completion,) = run(make_engine(tmp_path / "out"), requests_for(["the quick brown"], greedy(12)))
    assert completion.error is None


def test_a_value_too_large_for_fp16_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    large = write_tiny_llama(tmp_path / "large", dtype=torch.bfloat16)
    tensors = load_file(large / "model.safetensors")
    tensors["model.norm.weight"][3] = 1e5
    save_file(tensors, large / "model.safetensors", metadata={"format": "pt"})
    assert quantize(large, tmp_path / "out", "fp16") == 2
    assert "model.norm.weight: does not fit: fp16: a value of 99840 is too large" in capsys.readouterr().err
