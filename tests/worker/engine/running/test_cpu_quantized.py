"""Checkpoints with quantized weights on a CPU: they stay as small as they are stored."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from kernels.quantization import quantize_int8
from tests.fixtures import quantized_checkpoints as made
from tests.fixtures.generation import greedy, make_engine, requests_for, run
from tests.fixtures.logits import keep_logits
from tests.fixtures.tiny_llama import write_tiny_llama
from tests.worker.engine.models.layouts.test_layouts import LAYOUTS
from worker.engine.engine import Engine
from worker.engine.quantize.__main__ import main as quantize

PROMPTS = ([5, 6, 7], list(range(20, 33)))


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its sides are whole groups of every layout."""
    return write_tiny_llama(
        tmp_path_factory.mktemp("plain"),
        hidden_size=64,
        intermediate_size=128,
        initializer_range=0.1,
        dtype=torch.float32,
    )


def generate(directory: Path, dtype: str) -> tuple[Engine, list[tuple[int, ...]], Tensor]:
    """Return the engine, the tokens, and the logits of all of them."""
    engine = make_engine(directory, dtype=dtype)
    logits = keep_logits(engine)
    done = run(engine, requests_for(PROMPTS, greedy(4)))
    rows = [logits[key].float() for key in sorted(logits)]
    return engine, [one.token_ids for one in done], torch.stack(rows)


@pytest.mark.parametrize("name", ["gptq", "awq", "int4-zero", "int8", "int8-zero", "fp8-block"])
def test_weights_stay_quantized_and_give_what_they_are_worth(name: str, plain: Path, tmp_path: Path) -> None:
    packed, worth = made.store(plain, tmp_path, *LAYOUTS[name])
    found, tokens, logits = generate(packed, "f32")
    exact, expected_tokens, expected = generate(worth, "f32")
    assert tokens == expected_tokens
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)
    formats = found.model_info.weight_formats
    (format_,) = formats.keys() - {"f32"}
    assert format_ == {"gptq": "int4", "awq": "int4"}.get(name, name.split("-", maxsplit=1)[0])
    assert set(exact.model_info.weight_formats) == {"f32"}
    saved = exact.model_info.weight_bytes - found.model_info.weight_bytes
    assert saved > 0.6 * 4 * formats[format_]  # of its bytes in float32


@pytest.mark.parametrize("format_", ["int8", "int4", "fp8", "nf4"])
def test_what_the_command_writes_stays_quantized(format_: str, plain: Path, tmp_path: Path) -> None:
    assert quantize(["--model", str(plain), "--format", format_, "--out", str(tmp_path / "out")]) == 0
    engine, tokens, logits = generate(tmp_path / "out", "bf16")
    assert format_ in engine.model_info.weight_formats
    assert all(len(one) == 4 for one in tokens)
    assert logits.isfinite().all()


def test_int8_quantizes_other_formats_again(plain: Path, tmp_path: Path) -> None:
    packed, _ = made.store(plain, tmp_path, *LAYOUTS["int4"])
    engine = make_engine(packed, dtype="int8")
    assert set(engine.model_info.weight_formats) == {"int8"}


def test_a_quantized_head_stays_quantized(plain: Path, tmp_path: Path) -> None:
    packed, worth = made.store(plain, tmp_path, *LAYOUTS["int8"])
    stored, floats = (load_file(one / "model.safetensors") for one in (packed, worth))
    head = quantize_int8(floats["lm_head.weight"])
    stored |= {"lm_head.weight": head.levels, "lm_head.weight_scale": head.scales.unsqueeze(1)}
    save_file(stored, packed / "model.safetensors")
    save_file(floats | {"lm_head.weight": head.dequantize()}, worth / "model.safetensors")
    found, _, logits = generate(packed, "f32")
    assert set(found.model_info.weight_formats) == {"int8"}
    torch.testing.assert_close(logits, generate(worth, "f32")[2], rtol=1e-4, atol=1e-4)
