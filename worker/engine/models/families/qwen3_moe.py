"""Qwen3-MoE: Qwen3 with a mixture of experts in most layers."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from worker.engine.models.checkpoint import read_key, read_size
from worker.engine.models.decoder_config import DecoderConfig, ExpertsConfig, read_decoder_config
from worker.engine.requests.errors import CheckpointError


def read_qwen3_moe(file: Path, config: dict[str, Any]) -> DecoderConfig:
    """Return the shape of a `Qwen3MoeForCausalLM`."""
    shape = read_decoder_config(file, config)
    has_bias = read_key(file, config, "attention_bias", bool, default=False)
    dense = read_key(file, config, "mlp_only_layers", list, [])
    every = read_size(file, config, "decoder_sparse_step", 1)
    is_local = config.get("num_experts") is None and config.get("num_local_experts") is not None
    num_experts = read_size(file, config, "num_local_experts" if is_local else "num_experts")
    num_chosen = read_size(file, config, "num_experts_per_tok")
    if not 1 <= num_chosen <= num_experts:
        raise CheckpointError(
            file, "num_experts_per_tok", f"is {num_chosen}, but the model has {num_experts} experts"
        )
    window = None
    if read_key(file, config, "use_sliding_window", bool, default=False):
        window = read_size(file, config, "sliding_window", 4096)
    return replace(
        shape,
        has_qkv_bias=has_bias,
        has_output_bias=has_bias,
        has_head_norms=True,
        windows=(window,) * shape.num_layers,
        experts=ExpertsConfig(
            num_experts=num_experts,
            num_chosen=num_chosen,
            width=read_size(file, config, "moe_intermediate_size"),
            is_normalised=read_key(file, config, "norm_topk_prob", bool, default=False),
            layers=frozenset(
                index for index in range(shape.num_layers) if index not in dense and (index + 1) % every == 0
            ),
        ),
    )
