"""Checkpoints with quantized weights, or bfloat16, on a CPU: they stay as small as they are stored."""

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from kernels.product_chain import is_available
from kernels.quantization import quantize_int8
from tests.fixtures import quantized_checkpoints as made
from tests.fixtures.generation import greedy, make_engine, requests_for, run
from tests.fixtures.logits import keep_logits
from tests.fixtures.tiny_llama import write_tiny_llama
from tests.worker.engine.models.layouts.test_layouts import LAYOUTS
from worker.engine.engine import Engine
from worker.engine.models import products
from worker.engine.quantize.__main__ import main as quantize
from worker.engine.requests.generation import GenerationRequest

needs_chains = pytest.mark.skipif(not is_available(torch.float32), reason="needs AVX2")
needs_pairs = pytest.mark.skipif(not is_available(torch.bfloat16), reason="needs bf16 in chains")
pytestmark = pytest.mark.usefixtures("only_on_cpu")

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
    """Return the engine, whose cache is not quantized, the tokens, and the logits of all of them."""
    engine = make_engine(directory, dtype=dtype, kv_cache_dtype="plain")
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


@pytest.fixture(scope="module", params=[False, True], ids=["untied", "tied"])
def halves(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A checkpoint in bfloat16, and the same values in float32."""
    stored = write_tiny_llama(
        tmp_path_factory.mktemp("halves"),
        dtype=torch.bfloat16,
        hidden_size=64,
        attention_bias=True,
        tie_word_embeddings=request.param,
    )
    worth = shutil.copytree(stored, tmp_path_factory.mktemp("worth"), dirs_exist_ok=True)
    tensors = load_file(stored / "model.safetensors")
    save_file({name: one.float() for name, one in tensors.items()}, worth / "model.safetensors")
    return stored, worth


@needs_chains
def test_bfloat16_stays_bfloat16_and_is_computed_in_float32(halves: tuple[Path, Path]) -> None:
    (found, tokens, logits), (exact, expected_tokens, expected) = (generate(one, "f32") for one in halves)
    assert tokens == expected_tokens
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)
    assert found.model_info.dtype == exact.model_info.dtype == "f32"
    assert set(found.model_info.weight_formats) == {"bf16"}
    assert set(exact.model_info.weight_formats) == {"f32"}
    assert (
        found.model_info.weight_bytes < 0.52 * exact.model_info.weight_bytes
    )  # biases and norms are float32


@pytest.mark.parametrize("stored", ["bf16", "f32"])
@pytest.mark.parametrize(
    "dtype", [pytest.param("f32", marks=needs_chains), pytest.param("bf16", marks=needs_pairs)]
)
def test_products_of_floats_give_a_row_the_same_bits_in_any_batch(
    dtype: str, stored: str, halves: tuple[Path, Path]
) -> None:
    prompts = [list(range(2 + one, 4 + one + 3 * one)) for one in range(9)]
    rows: list[dict[int, Tensor]] = []
    for at_once in (1, 9):
        engine = make_engine(halves[stored == "f32"], dtype=dtype, max_num_sequences=at_once)
        kept = keep_logits(engine)
        run(engine, requests_for(prompts, greedy(6)))
        rows.append(kept)
    assert rows[0].keys() == rows[1].keys()
    assert all(torch.equal(rows[0][key], rows[1][key]) for key in rows[0])


@pytest.mark.parametrize("dtype", ["f32", "bf16", "int8"])
def test_the_likeliest_token_is_the_same_with_and_without_its_logits(
    dtype: str, halves: tuple[Path, Path]
) -> None:
    """Logprobs take the logits of all tokens, and give no other token for it."""
    found = []
    for counts in ([None] * 6, [2, None, None, 2, 0, None], [2] * 6):
        engine = make_engine(halves[0], dtype=dtype)
        params = [greedy(12, logprobs=count) for count in counts]
        requests = [GenerationRequest(index, [7 + index, 8, 9], one) for index, one in enumerate(params)]
        done = run(engine, requests)
        assert [len(one.logprobs or ()) for one in done] == [0 if one is None else 12 for one in counts]
        found.append([one.token_ids for one in done])
    assert found[0] == found[1] == found[2]


def test_a_tied_int8_head_is_read_as_the_embedding(tmp_path: Path) -> None:
    """One weight in memory, in 8 bits, in place of two."""
    fields = {"hidden_size": 64, "num_hidden_layers": 1, "dtype": torch.bfloat16}
    tied, apart = (
        make_engine(write_tiny_llama(tmp_path / str(tie), tie_word_embeddings=tie, **fields), dtype="int8")
        for tie in (True, False)
    )
    vocabulary = tied.model_info.vocab_size * 64
    saved = apart.model_info.weight_bytes - tied.model_info.weight_bytes
    assert saved == 2 * vocabulary
    assert set(tied.model_info.weight_formats) == {"int8"}
    weights = load_file(tmp_path / "True" / "model.safetensors")["model.embed_tokens.weight"].float()
    token_ids = torch.tensor([0, 1, 63, 64, 299])
    rows = tied._runner._model._embedding(token_ids)
    steps = weights[token_ids].abs().amax(dim=1, keepdim=True) / 127
    assert ((rows - weights[token_ids]).abs() <= 0.51 * steps).all()


def test_int8_weights_are_multiplied_in_float32_where_sums_would_saturate(
    halves: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("is_available", "is_exact"):
        monkeypatch.setattr(products, name, lambda *_: False)
    found, _, logits = generate(halves[1], "int8")
    assert set(found.model_info.weight_formats) == {"int8"}
    worth = shutil.copytree(halves[1], tmp_path / "worth")
    tensors = load_file(worth / "model.safetensors")
    kept = {"model.embed_tokens.weight"} & tensors.keys() if "lm_head.weight" in tensors else set()
    for name in tensors.keys() - kept:
        if tensors[name].dim() == 2:
            tensors[name] = quantize_int8(tensors[name]).dequantize()
    save_file(tensors, worth / "model.safetensors")
    _, _, expected = generate(worth, "f32")
    # Those of each prompt's first token: keys and values are in bfloat16, so later tokens may differ.
    assert ((logits - expected)[::4].abs().amax(dim=1) < 0.01 * expected[::4].abs().amax(dim=1)).all()
