"""Checkpoints of strangers: config.json, tokenizer.json and safetensors that lie."""

import json
import struct
from functools import cache
from pathlib import Path
from typing import Any

import torch

from api.inputs.checkpoint import Checkpoint, ModelDirectoryError
from tests.fixtures.tiny_llama import write_tiny_llama
from tests.fuzz.chaos import Chaos
from tests.fuzz.surfaces.model import folder
from worker.engine.models.checkpoint import Weights, read_eos_token_ids
from worker.engine.models.registry import ARCHITECTURES, read_architecture
from worker.engine.requests.errors import CheckpointError
from worker.engine.text.tokenizer import Tokenizer

MAX_MODEL_LEN = 16
SECTIONS: tuple[dict[str, Any], ...] = (
    {},
    {
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        }
    },
    {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}},
    {
        "quantization_config": {
            "quant_method": "gptq",
            "bits": 4,
            "group_size": 16,
            "checkpoint_format": "gptq",
        }
    },
    {"quantization_config": {"quant_method": "awq", "bits": 4, "version": "gemm"}},
    {"quantization_config": {"quant_method": "fp8", "weight_block_size": [16, 16]}},
    {"quantization_config": {"quant_method": "bitsandbytes", "bnb_4bit_quant_type": "nf4"}},
    {
        "quantization_config": {
            "quant_method": "compressed-tensors",
            "format": "int-quantized",
            "config_groups": {
                "group_0": {"weights": {"num_bits": 8, "strategy": "channel", "symmetric": True}}
            },
        }
    },
    {
        "quantization_config": {
            "quant_method": "compressed-tensors",
            "format": "mixed-precision",
            "config_groups": {
                "group_0": {
                    "targets": ["re:.*down_proj"],
                    "format": "pack-quantized",
                    "weights": {"num_bits": 4, "strategy": "group", "symmetric": True},
                },
                "group_1": {
                    "targets": ["Linear"],
                    "format": "int-quantized",
                    "weights": {"num_bits": 8, "strategy": "channel", "symmetric": True},
                },
            },
        }
    },
    {
        "sliding_window": 8,
        "layer_types": ["full_attention", "sliding_attention"],
        "query_pre_attn_scalar": 12,
        "num_experts": 2,
        "num_experts_per_tok": 1,
        "moe_intermediate_size": 8,
        "mlp_only_layers": [],
    },
)


@cache
def _whole() -> dict[str, bytes]:
    directory = write_tiny_llama(
        folder() / "smallest",
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        intermediate_size=16,
    )
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@cache
def _directory() -> Path:
    directory = folder() / "stranger"
    directory.mkdir()
    return directory


def _write(changed: dict[str, bytes]) -> Path:
    directory = _directory()
    for path in directory.iterdir():
        path.unlink()
    for name, content in (_whole() | changed).items():
        (directory / name).write_bytes(content)
    return directory


def _config(chaos: Chaos) -> bytes:
    config = json.loads(_whole()["config.json"]) | chaos.choice(SECTIONS)
    if chaos.random() < 0.4:
        config["architectures"] = [chaos.choice(list(ARCHITECTURES))]
    return chaos.spelled(chaos.spoiled(config))


def configs(chaos: Chaos) -> bool:
    """Read what a config says, at the door and in the engine."""
    directory = _write(
        {
            "config.json": _config(chaos),
            "generation_config.json": chaos.spelled(chaos.spoiled({"eos_token_id": [1]})),
        }
    )
    try:
        checkpoint = Checkpoint.load(directory)
        assert checkpoint.max_model_len > 1
    except ModelDirectoryError as error:
        assert str(error)
    try:
        read_architecture(directory)
        read_eos_token_ids(directory)
    except CheckpointError as error:
        assert str(error)
        return False
    return True


def _tensors(chaos: Chaos) -> bytes:
    """Return a safetensors file whose header was spoiled, or whose bytes were damaged."""
    whole = _whole()["model.safetensors"]
    (size,) = struct.unpack("<Q", whole[:8])
    header, data = json.loads(whole[8 : 8 + size]), whole[8 + size :]
    action = chaos.randrange(4)
    if action == 0:
        return chaos.damaged(whole)
    if action == 1:
        spelled = chaos.spelled(chaos.spoiled(header))
        return (
            struct.pack("<Q", chaos.choice((len(spelled), len(spelled) + 1, 2**63, 2**31, 0)))
            + spelled
            + data
        )
    name = chaos.choice([name for name in header if name != "__metadata__"])
    entry = header[name]
    field = chaos.choice(("dtype", "shape", "data_offsets"))
    if field == "dtype":
        entry["dtype"] = chaos.choice(
            ("I8", "I64", "F16", "BF16", "F8_E4M3", "BOOL", "U8", "F64", "C64", "x")
        )
    elif field == "shape":
        entry["shape"] = chaos.choice(([0], [], [2**62, 4], [-1], entry["shape"][::-1], [*entry["shape"], 1]))
    else:
        entry["data_offsets"] = chaos.choice(([0, 0], [0, 2**63], [8, 4], [0, len(data)], [-1, 5]))
    spelled = json.dumps(header).encode()
    return struct.pack("<Q", len(spelled)) + spelled + data


def weights(chaos: Chaos) -> bool:
    """Load what a stranger's tensors are."""
    changed = {"model.safetensors": _tensors(chaos)}
    if chaos.random() < 0.4:
        changed["config.json"] = _config(chaos)
    if chaos.random() < 0.2:
        index = {
            "weight_map": {
                "model.embed_tokens.weight": "model.safetensors",
                "lm_head.weight": "../x.safetensors",
            }
        }
        changed["model.safetensors.index.json"] = chaos.spelled(chaos.spoiled(index))
    directory = _write(changed)
    try:
        architecture = read_architecture(directory)
        with Weights(directory, torch.float32) as found:
            architecture.load(found, MAX_MODEL_LEN)
    except CheckpointError as error:
        assert str(error)
        return False
    return True


def tokenizers(chaos: Chaos) -> bool:
    """Read a tokenizer, with its config and template."""
    tokenizer = json.loads(_whole()["tokenizer.json"])
    tokenizer["model"]["vocab"] = dict(list(tokenizer["model"]["vocab"].items())[:270])
    tokenizer["model"]["merges"] = []
    config = {
        "chat_template": "{{ messages[0].content }}",
        "bos_token": {"content": "<s>"},
        "eos_token": "</s>",
    }
    directory = _write(
        {
            "tokenizer.json": chaos.spelled(chaos.spoiled(tokenizer)),
            "tokenizer_config.json": chaos.spelled(chaos.spoiled(config)),
        }
    )
    accepted = True
    try:
        door = Checkpoint.load(directory)
        door.count_tokens(["quick brown fox \x00 \U0001f642"], add_special_tokens=True)
        door.token_text(chaos.choice((0, 5, 10**6)))
    except ModelDirectoryError as error:
        assert str(error)
        accepted = False
    try:
        engine = Tokenizer(directory)
        engine.decode(engine.encode_batch(["quick brown fox"])[0])
        assert engine.vocab_size >= 0
    except CheckpointError as error:
        assert str(error)
        accepted = False
    return accepted
