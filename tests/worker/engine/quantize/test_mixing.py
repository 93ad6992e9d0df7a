"""Formats are mixed by what each costs the model on text."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.fixtures.generation import greedy, make_engine, requests_for, run
from tests.fixtures.tiny_llama import TEXT, write_tiny_llama
from worker.engine.models.checkpoint import Weights
from worker.engine.quantize.__main__ import main
from worker.engine.quantize.calibration import Moments, observe, read_windows
from worker.engine.quantize.formats import WeightFormat
from worker.engine.quantize.mixing import FORMATS, find_formats
from worker.engine.quantize.sensitivity import Sensitivity
from worker.engine.quantize.writer import num_bytes_of, quantize_checkpoint

FRAGILE = "model.layers.0.self_attn.o_proj"
LOOSE, TIGHT = 0.05, 0.002


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint in bf16 of which one weight has a column that spoils the ranges of its groups."""
    directory = write_tiny_llama(
        tmp_path_factory.mktemp("plain"),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=1,
        initializer_range=0.1,
        dtype=torch.bfloat16,
    )
    file = directory / "model.safetensors"
    tensors = load_file(file)
    tensors[f"{FRAGILE}.weight"][:, ::32] *= 8
    save_file(tensors, file, metadata={"format": "pt"})
    return directory


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("text") / "text"
    words = TEXT.split()
    file.write_text(" ".join(word for turn in range(1, 60) for word in words[:: 1 + turn % 7]))
    return file


def test_a_product_costs_more_the_fewer_its_bits(plain: Path, text: Path) -> None:
    windows = read_windows(plain, text.read_text())
    sensitivity = Sensitivity(plain, observe(plain, windows[::2], Moments))
    read = sensitivity.read(windows[1::2][:2])
    assert sensitivity.products[FRAGILE] == [FRAGILE]
    first = "model.layers.0.self_attn"
    assert sensitivity.products[f"{first}.q_proj"] == [f"{first}.{name}_proj" for name in "qkv"]
    costs = {product: sensitivity.costs(product, FORMATS, read) for product in sensitivity.products}
    four, eight = WeightFormat("int4", 32), WeightFormat("int8")
    assert all(0 < one[eight].loss < one[four].loss for one in costs.values())
    assert max(costs, key=lambda product: costs[product][four].loss) == FRAGILE
    assert costs[FRAGILE][eight].num_bytes == 64 * 64 + 4 * 64
    assert costs[FRAGILE][None].num_bytes == 2 * 64 * 64
    # groups of 128 do not fit a width of 64
    assert WeightFormat("int4", 128) not in costs[FRAGILE]
    exact = sensitivity.compare({}, read)
    assert (exact.change, exact.divergence, exact.agreement) == (0, 0, 1), "each format is taken back"


def test_a_smaller_loss_leaves_more_bytes(plain: Path, text: Path) -> None:
    windows = read_windows(plain, text.read_text())
    lines: list[str] = []
    sizes = []
    for max_loss in (LOOSE, TIGHT):
        found = find_formats(plain, windows, max_loss, lines.append)
        assert found.comparison.change_interval[1] <= max_loss
        assert found.num_modules == 7
        bits = [4 if one.kind == "int4" else 8 for one in found.formats.values()]
        sizes.append(sum(bits) + 16 * (found.num_modules - len(bits)))
    assert sizes[0] < sizes[1], "a loss that is allowed is used"
    assert any(line.startswith(f"{FRAGILE}: int4 in groups of 64 ") for line in lines)


def test_the_command_writes_what_it_has_found(
    plain: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--model", str(plain), "--out", str(tmp_path / "auto"), "--calibration", str(text)]
    assert main([*options, "--format", "auto", "--max-loss", "5%"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "on the text" in lines[-2]
    assert "ratio" in lines[-1]
    assert quantize_checkpoint(plain, tmp_path / "int8", WeightFormat("int8")) > num_bytes_of(
        tmp_path / "auto"
    )
    (completion,) = run(make_engine(tmp_path / "auto"), requests_for(["the quick brown"], greedy(12)))
    assert completion.error is None


def test_a_mixture_is_written_in_groups_and_read_again(plain: Path, tmp_path: Path) -> None:
    layer, out = "model.layers.0", tmp_path / "out"
    formats = {
        **{f"{layer}.self_attn.{name}_proj": WeightFormat("int4", 32) for name in "qkv"},
        **{f"{layer}.mlp.{name}_proj": WeightFormat("int8") for name in ("gate", "up")},
        f"{layer}.mlp.down_proj": WeightFormat("int4", 64),
    }
    quantize_checkpoint(plain, out, formats)
    section = json.loads((out / "config.json").read_text())["quantization_config"]
    groups = section["config_groups"].values()
    assert section["format"] == "mixed-precision"
    assert section["ignore"] == ["lm_head", FRAGILE]
    assert {name: group["weights"]["num_bits"] for group in groups for name in group["targets"]} == {
        name: 4 if one.kind == "int4" else 8 for name, one in formats.items()
    }
    assert [group["format"] for group in groups] == ["pack-quantized", "pack-quantized", "int-quantized"]
    with Weights(out, torch.float32) as weights:
        for name, tensor in load_file(plain / "model.safetensors").items():
            found, format_ = weights.take(name, *tensor.shape), formats.get(name.removesuffix(".weight"))
            expected = tensor.float() if format_ is None else format_.quantize(tensor).dequantize()
            torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-7)
    for dtype in ("f32", "int8"):
        engine = make_engine(out, dtype=dtype)
        (completion,) = run(engine, requests_for(["the quick brown"], greedy(12)))
        assert completion.error is None
    assert make_engine(out, device="cpu").model_info.weight_formats.keys() >= {"int4", "int8"}


def test_auto_needs_enough_text(plain: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "text"
    text.write_text(TEXT)
    options = ["--model", str(plain), "--out", str(tmp_path / "out"), "--format", "auto"]
    assert main([*options, "--calibration", str(text)]) == 2
    assert "windows of tokens; at least 4 are needed" in capsys.readouterr().err
    for wrong, said in (
        ([], "--calibration: auto needs a text"),
        (["--calibration", str(text), "--max-loss", "150%"], "must be more than 0 and less than 100%"),
    ):
        with pytest.raises(SystemExit):
            main([*options, *wrong])
        assert said in capsys.readouterr().err
