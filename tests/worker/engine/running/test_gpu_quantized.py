"""Quantized weights and caches on the engine's way over a GPU, interpreted where there is none."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import kernels.device
from kernels.product_chain import UNPACKS, is_available
from kernels.testing import TOLERANCES
from tests.fixtures import quantized_checkpoints as made
from tests.fixtures.generation import greedy, make_engine, requests_for, run
from tests.fixtures.logits import keep_logits
from tests.fixtures.tiny_llama import write_tiny_llama
from tests.worker.engine.models.layouts.test_layouts import LAYOUTS
from worker.engine.engine import Engine
from worker.engine.models.layers.linear import ChainedLinear, Linear
from worker.engine.models.layers.mlp import Gated
from worker.engine.models.layers.quantized_linear import ScaledLinear, WeightOnlyLinear
from worker.engine.quantize.__main__ import main as quantize
from worker.engine.requests.config import EngineConfig
from worker.engine.requests.errors import ConfigError
from worker.engine.running import model_runner

pytestmark = [
    pytest.mark.filterwarnings("ignore:overflow encountered"),
    pytest.mark.filterwarnings("ignore:invalid value encountered"),
]

PROMPTS = ([5, 6, 7], list(range(20, 33)))
SETTINGS = {"max_num_sequences": 4, "max_tokens_per_step": 12, "max_model_len": 48, "num_blocks": 40}
NUM_TOKENS = 2


def pretend_to_be_a_gpu(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(kernels.device, "uses_triton", lambda _: True)
    patch.setattr(model_runner, "open_device", lambda _: torch.device("cpu"))
    patch.setattr(torch._C, "_has_mkldnn", False)  # whose float16 not every CPU has
    # Triton's interpreter computes in bfloat16 as if its bits were integers.
    half = dict.fromkeys(("bf16", "int8", "fp8"), torch.float16)
    patch.setattr(model_runner, "TORCH_DTYPES", model_runner.TORCH_DTYPES | half)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its sides are whole groups of every layout, its weights small, so that logits are about one."""
    return write_tiny_llama(
        tmp_path_factory.mktemp("plain"),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=1,
        initializer_range=0.1,
        dtype=torch.float16,
    )


@dataclass(frozen=True, slots=True)
class Generated:
    """What an engine made of the prompts."""

    engine: Engine
    model: Any
    tokens: list[tuple[int, ...]]
    logits: dict[Any, Tensor]

    @property
    def products(self) -> list[type]:
        """One layer's: of queries, keys and values, of attention's output, gate and up, down."""
        layer = self.model._layers[0]
        found = (layer.attention.qkv, layer.attention_out, layer.mlp.gated, layer.mlp.down)
        return [type(one) for one in found]


def generate(directory: Path, **overrides: Any) -> Generated:
    fields = {"device": "cuda", "dtype": "bf16"} | SETTINGS | overrides
    with pytest.MonkeyPatch.context() as patch:
        if fields["device"] == "cuda" and not torch.cuda.is_available():
            pretend_to_be_a_gpu(patch)
        engine = make_engine(directory, **fields)
        model, logits = engine._runner._model, keep_logits(engine)
        done = run(engine, requests_for(PROMPTS, greedy(NUM_TOKENS)))
    return Generated(engine, model, [one.token_ids for one in done], logits)


def assert_agree(found: Generated, exact: Generated) -> None:
    """Logits by the tolerance of what activations are in, as a whole; tokens where those leave no doubt."""
    tolerance = TOLERANCES[torch.bfloat16 if torch.cuda.is_available() else torch.float16]
    for index, prompt in enumerate(PROMPTS):
        for nth in range(NUM_TOKENS):
            ours, theirs = (one.logits[index, len(prompt) + nth].float() for one in (found, exact))
            bound = tolerance.absolute + tolerance.relative * theirs.abs().max()
            assert (ours - theirs).abs().max() <= bound
            first, second = theirs.topk(2).values
            if first - second < 2 * bound:
                break
            assert found.tokens[index][nth] == exact.tokens[index][nth]


@pytest.mark.parametrize("name", ["gptq", "int4", "int8-zero", "fp8-tensor", "fp8-block"])
def test_quantized_weights_give_what_they_are_worth(name: str, plain: Path, tmp_path: Path) -> None:
    section, pack = LAYOUTS[name]
    if name == "fp8-block":
        section = {"quant_method": "fp8", "weight_block_size": [48, 32]}
        pack = made.fp8("weight_scale_inv", (48, 32))
    packed, worth = made.store(plain, tmp_path, section, pack)
    found, wanted = generate(packed), generate(worth, device="cpu", dtype="f32")
    assert set(found.products) == {WeightOnlyLinear}
    assert set(wanted.products) == {ChainedLinear if is_available(torch.float32) else Linear, Gated}
    assert_agree(found, wanted)
    ours, theirs = found.engine.model_info, wanted.engine.model_info
    assert ours.num_parameters == theirs.num_parameters
    assert ours.weight_bytes < 0.5 * theirs.weight_bytes


def test_nf4_weights_give_what_they_are_worth(plain: Path, tmp_path: Path) -> None:
    assert quantize(["--model", str(plain), "--format", "nf4", "--out", str(tmp_path / "out")]) == 0
    found, exact = generate(tmp_path / "out"), generate(tmp_path / "out", device="cpu", dtype="f32")
    assert set(found.products) == {WeightOnlyLinear}
    assert set(exact.products) == {ChainedLinear if UNPACKS else WeightOnlyLinear, Gated}
    assert_agree(found, exact)


@pytest.mark.parametrize("format_", ["int8", "fp8"])
def test_a_checkpoint_and_loading_give_the_same_products(format_: str, plain: Path, tmp_path: Path) -> None:
    """Weights quantized by the command, and by the loader, with tokens quantized in both."""
    assert quantize(["--model", str(plain), "--format", format_, "--out", str(tmp_path / "out")]) == 0
    stored, loaded = generate(tmp_path / "out", dtype=format_), generate(plain, dtype=format_)
    for one in (stored, loaded):
        assert set(one.products) == {ScaledLinear}
        assert isinstance(one.model._head, ScaledLinear if format_ == "int8" else Linear)
    if format_ == "fp8" and torch.cuda.is_available():
        # The loader's sums of errors there are rounded otherwise, so of equally good scales it takes another.
        assert_agree(stored, loaded)
    else:
        assert stored.tokens == loaded.tokens
        for key, one in loaded.logits.items():
            assert torch.equal(stored.logits[key], one)
    exact = generate(plain, device="cpu", dtype="f32")
    for key in enumerate(map(len, PROMPTS)):  # 8-bit tokens cost something, and it is little
        assert 1e-3 < relative_error(loaded.logits[key], exact.logits[key]) < 0.3


def test_experts_are_quantized_and_their_tokens_are_not(tmp_path: Path) -> None:
    sizes = {"hidden_size": 64, "num_hidden_layers": 1, "initializer_range": 0.1, "dtype": torch.float16}
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    model = write_tiny_llama(tmp_path, config_class="Qwen3MoeConfig", **sizes, **experts)
    found = generate(model, dtype="int8")
    mixture = found.model._layers[0].mlp
    assert [one.stacked.format for one in (mixture._gate_up, mixture._down)] == ["int8", "int8"]
    exact = generate(model, device="cpu", dtype="f32")
    for key in enumerate(map(len, PROMPTS)):
        assert 1e-3 < relative_error(found.logits[key], exact.logits[key]) < 0.3


def test_a_product_of_two_formats_comes_as_floats(plain: Path, tmp_path: Path) -> None:
    """Queries left as they are beside quantized keys and values: one product needs one format."""
    packed, _ = made.store(plain, tmp_path, *LAYOUTS["int8"])
    tensors = load_file(packed / "model.safetensors")
    name = "model.layers.0.self_attn.q_proj.weight"
    tensors[name] = load_file(plain / "model.safetensors")[name]
    del tensors[f"{name}_scale"]
    save_file(tensors, packed / "model.safetensors")
    found = generate(packed)
    assert found.products == [Linear, *[WeightOnlyLinear] * 3]
    assert all(len(one) == NUM_TOKENS for one in found.tokens)


@pytest.mark.parametrize("kv_cache_dtype", ["int8", "fp8"])
def test_a_quantized_cache_changes_logits_little(kv_cache_dtype: str, plain: Path) -> None:
    found = generate(plain, dtype="f32", kv_cache_dtype=kv_cache_dtype)
    caches = found.engine._runner._kv_cache
    assert {cache.kv_format for cache in caches} == {kv_cache_dtype}
    stored = sum(cache.blocks.nbytes + cache.scales.nbytes for cache in caches)
    assert found.engine.model_info.kv_cache_bytes == stored
    exact = generate(plain, device="cpu", dtype="f32")
    for key in enumerate(map(len, PROMPTS)):
        assert 1e-5 < relative_error(found.logits[key], exact.logits[key]) < 0.07


def test_a_cpu_has_an_int8_cache_too(plain: Path) -> None:
    found = generate(plain, device="cpu", dtype="f32", kv_cache_dtype="int8")
    caches = found.engine._runner._kv_cache
    stored = sum(memory.nbytes for cache in caches for memory in (cache.keys, cache.values, cache.scales))
    assert found.engine.model_info.kv_cache_bytes == stored
    exact = generate(plain, device="cpu", dtype="f32")
    for key in enumerate(map(len, PROMPTS)):
        assert 1e-5 < relative_error(found.logits[key], exact.logits[key]) < 0.07


def relative_error(found: Tensor, exact: Tensor) -> float:
    return float((found.float() - exact.float()).square().mean().sqrt() / exact.float().std())


def test_what_a_cpu_does_not_have_is_refused(plain: Path) -> None:
    with pytest.raises(ConfigError, match="dtype fp8 needs device 'cuda'"):
        make_engine(plain, device="cpu", dtype="fp8")
    with pytest.raises(ConfigError, match="kv_cache_dtype fp8 needs device 'cuda'"):
        make_engine(plain, device="cpu", kv_cache_dtype="fp8")
    with pytest.raises(ConfigError, match="kv_cache_dtype must be one of plain, int8, fp8, not 'int3'"):
        EngineConfig(plain, kv_cache_dtype="int3")
