"""Checkpoints in published layouts load as what they are worth."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.fixtures import quantized_checkpoints as made
from tests.fixtures.generation import greedy, make_engine, requests_for, run
from tests.fixtures.tiny_llama import edit_config, write_tiny_llama
from worker.engine.models.checkpoint import Weights
from worker.engine.requests.errors import CheckpointError, UnsupportedModelError


def compressed(format_: str, **weights: Any) -> dict[str, Any]:
    return {
        "quant_method": "compressed-tensors",
        "format": format_,
        "quantization_status": "compressed",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
        "ignore": ["lm_head"],
    }


INT8 = {"num_bits": 8, "strategy": "channel", "symmetric": True}
INT4 = {"num_bits": 4, "strategy": "group", "group_size": 32, "symmetric": True}


def mixed(attention: Any, others: Any) -> dict[str, Any]:
    """Attention in int4, the rest in int8: as targets say that are names, patterns, or every other one."""
    return compressed("mixed-precision") | {
        "config_groups": {
            "group_0": {"targets": others, "format": "int-quantized", "weights": INT8},
            "group_1": {"targets": attention, "format": "pack-quantized", "weights": INT4},
        }
    }


def attention_in_int4(weight: Tensor) -> made.Stored:
    is_attention = max(weight.shape) == 64
    pack = (
        made.compressed_int4(is_symmetric=True, group_size=32)
        if is_attention
        else made.compressed_int8(is_symmetric=True)
    )
    return pack(weight)


NAMES = [f"model.layers.{layer}.self_attn.{name}_proj" for layer in range(2) for name in "qkvo"]
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False}
LAYOUTS: dict[str, tuple[dict[str, Any], Any]] = {
    "gptq": (GPTQ, made.gptq()),
    "gptq-v2": (GPTQ | {"checkpoint_format": "gptq_v2"}, made.gptq(zero_offset=0)),
    "gptq-desc-act": (GPTQ | {"desc_act": True}, made.gptq(is_shuffled=True)),
    "gptq-8": (GPTQ | {"bits": 8}, made.gptq(num_bits=8)),
    "awq": ({"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm"}, made.awq),
    "int4": (
        compressed("pack-quantized", num_bits=4, strategy="group", group_size=32, symmetric=True),
        made.compressed_int4(is_symmetric=True, group_size=32),
    ),
    "int4-zero": (
        compressed("pack-quantized", num_bits=4, strategy="group", group_size=64, symmetric=False),
        made.compressed_int4(is_symmetric=False, group_size=64),
    ),
    "int4-rare-group": (
        compressed("pack-quantized", num_bits=4, strategy="group", group_size=16, symmetric=True),
        made.compressed_int4(is_symmetric=True, group_size=16),
    ),
    "int8": (
        compressed("int-quantized", num_bits=8, strategy="channel", symmetric=True),
        made.compressed_int8(is_symmetric=True),
    ),
    "int8-zero": (
        compressed("int-quantized", num_bits=8, strategy="channel", symmetric=False),
        made.compressed_int8(is_symmetric=False),
    ),
    "mixed-patterns": (mixed(["re:.*self_attn.*"], ["re:.*mlp.*"]), attention_in_int4),
    "mixed-names": (mixed(NAMES, ["Linear"]), attention_in_int4),
    "fp8-tensor": (
        compressed("float-quantized", num_bits=8, strategy="tensor", symmetric=True),
        made.fp8("weight_scale", None),
    ),
    "fp8-block": (
        compressed("float-quantized", num_bits=8, strategy="block", symmetric=True, block_structure=[48, 48]),
        made.fp8("weight_scale", (48, 48)),
    ),
    "fp8-deepseek": (
        {"quant_method": "fp8", "weight_block_size": [48, 40]},
        made.fp8("weight_scale_inv", (48, 40)),
    ),
}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its sides are whole groups of every layout."""
    return write_tiny_llama(
        tmp_path_factory.mktemp("plain"), hidden_size=64, intermediate_size=128, dtype=torch.float32
    )


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_weight_is_what_it_is_worth(name: str, plain: Path, tmp_path: Path) -> None:
    packed, worth = made.store(plain, tmp_path, *LAYOUTS[name])
    with Weights(packed, torch.float32) as weights:
        for tensor, expected in load_file(worth / "model.safetensors").items():
            found = weights.take(tensor, *expected.shape)
            torch.testing.assert_close(found, expected.float(), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", ["gptq-desc-act", "awq", "int4-zero", "mixed-names"])
def test_the_engine_runs_it(name: str, plain: Path, tmp_path: Path) -> None:
    packed, worth = made.store(plain, tmp_path, *LAYOUTS[name])
    one, other = (
        [
            completion.token_ids
            for completion in run(make_engine(model), requests_for([[5, 6, 7]], greedy(20)))
        ]
        for model in (packed, worth)
    )
    assert one == other


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"quant_method": "hqq"}, "quant_method: 'hqq' is not supported"),
        (GPTQ | {"bits": 3}, "bits: 3 is not supported"),
        ({"quant_method": "bitsandbytes", "bnb_4bit_quant_type": "fp4"}, "bnb_4bit_quant_type: 'fp4'"),
        (compressed("marlin-24"), "format: 'marlin-24'"),
        (compressed("int-quantized", num_bits=8, strategy="group"), "strategy: 'group'"),
        (compressed("int-quantized", num_bits=8) | {"config_groups": {}}, "config_groups: has no groups"),
        (compressed("int-quantized") | {"config_groups": None}, "config_groups: has None; at least one"),
        (compressed("mixed-precision", num_bits=8), "format: 'mixed-precision' is not supported"),
        (mixed("q_proj", ["Linear"]), r"group_1\.targets: must be names of modules, not 'q_proj'"),
        (mixed(["re:("], ["Linear"]), r"group_1\.targets: has a pattern that cannot be read"),
        (
            compressed("int-quantized") | {"config_groups": {"group_0": {"targets": ["Linear"]}}},
            r"config_groups\.group_0\.weights: must be an object, not None",
        ),
        (
            compressed("int-quantized") | {"config_groups": {"group_1": {"weights": None}}},
            r"config_groups\.group_1\.weights: must be an object, not None",
        ),
        (
            {"quant_method": "fp8", "weight_block_size": [128]},
            r"weight_block_size: must be \[rows.* not \[128\]",
        ),
        ({"quant_method": "fp8", "weight_block_size": [128, "all"]}, "weight_block_size: .*'all'"),
        (
            compressed("float-quantized", num_bits=8, strategy="block", block_structure=[1, 2, 3]),
            r"block_structure: .*\[1, 2, 3\]",
        ),
    ],
    ids=str,
)
def test_what_is_not_built_is_named(
    change: dict[str, Any], problem: str, plain: Path, tmp_path: Path
) -> None:
    packed, _ = made.store(plain, tmp_path, *LAYOUTS["gptq"])
    edit_config(packed, quantization_config=change)
    with pytest.raises(UnsupportedModelError, match=problem):
        Weights(packed, torch.float32)


def test_a_module_of_no_group_is_named(plain: Path, tmp_path: Path) -> None:
    packed, _ = made.store(plain, tmp_path, *LAYOUTS["mixed-patterns"])
    edit_config(packed, quantization_config=mixed(["re:.*self_attn.*"], ["re:.*up_proj"]))
    with (
        Weights(packed, torch.float32) as weights,
        pytest.raises(CheckpointError, match=r"gate_proj: .*no group of config\.json is for it"),
    ):
        weights.take("model.layers.0.mlp.gate_proj.weight", 128, 64)


def test_tensors_that_do_not_fit_are_named(plain: Path, tmp_path: Path) -> None:
    packed, _ = made.store(plain, tmp_path, *LAYOUTS["awq"])
    tensors = load_file(packed / "model.safetensors")
    name = "model.layers.1.mlp.up_proj"
    tensors[f"{name}.scales"] = tensors[f"{name}.scales"][:, :-8].contiguous()
    save_file(tensors, packed / "model.safetensors")
    with (
        Weights(packed, torch.float32) as weights,
        pytest.raises(CheckpointError, match=f"{name}: .*fit together"),
    ):
        weights.take(f"{name}.weight", 128, 64)


def test_levels_without_a_layout_are_refused(plain: Path, tmp_path: Path) -> None:
    packed, _ = made.store(plain, tmp_path, *LAYOUTS["int8"])
    edit_config(packed, quantization_config=None)
    name = "model.layers.1.mlp.up_proj.weight"
    with (
        Weights(packed, torch.float32) as weights,
        pytest.raises(CheckpointError, match="has no quantization_config"),
    ):
        weights.take(name, 128, 64)
