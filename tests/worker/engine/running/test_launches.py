"""What Steps may launch is a closed set, which compiles for a GPU; it does so before the first request."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.fixtures.tiny_llama import write_tiny_llama
from worker.engine.models.medusa_heads import MedusaHeads
from worker.engine.models.registry import read_architecture

SETTINGS = {"max_num_sequences": 70, "max_tokens_per_step": 150, "max_model_len": 1100, "num_blocks": 2000}
MODELS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "llama": ({}, {"dtype": "f32"}),
    "llama in bf16": ({}, {"dtype": "bf16", "kv_cache_dtype": "int8"}),
    "int8": ({}, {"dtype": "int8"}),
    "heads": ({}, {"dtype": "bf16", "speculates": True}),
    "gemma3": (
        {
            "config_class": "Gemma3TextConfig",
            "head_dim": 16,
            "query_pre_attn_scalar": 30,
            "sliding_window": 10,
            "layer_types": ["sliding_attention", "full_attention"],
            "tie_word_embeddings": True,
        },
        {"dtype": "bf16"},
    ),
    "qwen3_moe": (
        {
            "config_class": "Qwen3MoeConfig",
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "mlp_only_layers": [1],
            "norm_topk_prob": True,
        },
        {"dtype": "bf16"},
    ),
}


def launches(model: Path, fields: dict[str, Any]) -> Any:
    """What Triton compiles at start and after it, in a process in which it does not interpret."""
    command = [
        sys.executable,
        "-m",
        "tests.worker.engine.running.launches",
        str(model),
        json.dumps(SETTINGS | fields),
    ]
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    "name", [one if one == "llama" else pytest.param(one, marks=pytest.mark.slow) for one in MODELS]
)
def test_no_step_compiles_a_kernel(name: str, tmp_path: Path) -> None:
    fields, settings = MODELS[name]
    model = write_tiny_llama(tmp_path, max_position_embeddings=2048, **fields)
    if name == "heads":
        MedusaHeads.new(4, read_architecture(model).hidden_size).save(model, torch.float32)
    found = launches(model, settings)
    assert found["at_start"] > 5
    assert found["num_steps"] > 100
    assert (found["num_guesses"] > 100) == (name == "heads")
    assert found["later"] == []
