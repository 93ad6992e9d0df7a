"""Builds a Decoder from its checkpoint, fusing QKV and gate-up each into one weight."""

import torch
from torch import Tensor

from kernels.kv_write import HeadNorms
from worker.engine.models.checkpoint import Weights
from worker.engine.models.decoder import Decoder
from worker.engine.models.decoder_config import DecoderConfig
from worker.engine.models.layers.attention import Attention
from worker.engine.models.layers.decoder_layer import DecoderLayer
from worker.engine.models.layers.mixture_of_experts import ExpertRouter, ExpertsOnGpu, MixtureOfExperts
from worker.engine.models.layers.mlp import GatedMlp, Mlp


def load_decoder(config: DecoderConfig, weights: Weights, max_model_len: int) -> Decoder:
    """Return the decoder; raises CheckpointError when a tensor is missing or has another shape."""
    embedding, head = weights.ends(config.vocab_size, config.hidden_size, is_tied=config.has_tied_embeddings)
    scale = config.embedding_scale
    return Decoder(
        config,
        embedding,
        # Rounded to the dtype, as in training.
        None if scale is None else torch.tensor(scale, dtype=weights.dtype).item(),
        [_layer(config, weights, index) for index in range(config.num_layers)],
        _norm(config, weights, "model.norm", config.hidden_size),
        head,
        max_model_len,
        weights.activation_dtype,
        weights.device,
    )


def _layer(config: DecoderConfig, weights: Weights, index: int) -> DecoderLayer:
    prefix, hidden = f"model.layers.{index}", config.hidden_size
    query, key = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    norms = None
    if config.has_head_norms:
        query_norm, key_norm = (
            _norm(config, weights, f"{prefix}.self_attn.{name}", config.head_dim)
            for name in ("q_norm", "k_norm")
        )
        norms = HeadNorms(query_norm, key_norm, config.norm_eps)
    if config.has_fused_weights:
        names, rows = ["qkv_proj"], [query + 2 * key]
    else:
        names, rows = ["q_proj", "k_proj", "v_proj"], [query, key, key]
    qkv = weights.linear(
        [f"{prefix}.self_attn.{name}" for name in names], rows, hidden, has_bias=config.has_qkv_bias
    )
    # Families with norms on both sides give the name post_attention_layernorm to the attention's second norm.
    mlp_norm = "pre_feedforward_layernorm" if config.has_post_norms else "post_attention_layernorm"
    return DecoderLayer(
        attention_norm=_norm(config, weights, f"{prefix}.input_layernorm", hidden),
        attention=Attention(
            qkv,
            scale=config.attention_scale,
            norms=norms,
            window=config.windows[index],
            soft_cap=config.attention_soft_cap,
        ),
        attention_out=weights.linear(
            [f"{prefix}.self_attn.o_proj"], [hidden], query, has_bias=config.has_output_bias
        ),
        attention_post_norm=_post_norm(config, weights, f"{prefix}.post_attention_layernorm"),
        mlp_norm=_norm(config, weights, f"{prefix}.{mlp_norm}", hidden),
        mlp=_mlp(config, weights, index),
        mlp_post_norm=_post_norm(config, weights, f"{prefix}.post_feedforward_layernorm"),
    )


def _mlp(config: DecoderConfig, weights: Weights, index: int) -> Mlp:
    prefix, experts = f"model.layers.{index}.mlp", config.experts
    if experts is None or index not in experts.layers:
        return _gated(config, weights, prefix, config.intermediate_size)
    router = ExpertRouter(
        weights.linear([f"{prefix}.gate"], [experts.num_experts], config.hidden_size, is_exact=True),
        num_chosen=experts.num_chosen,
        is_normalised=experts.is_normalised,
    )
    names = [f"{prefix}.experts.{expert}" for expert in range(experts.num_experts)]
    if not weights.is_gpu:
        return MixtureOfExperts(router, [_gated(config, weights, name, experts.width) for name in names])
    return ExpertsOnGpu(
        router,
        weights.experts(names, ["gate_proj", "up_proj"], experts.width, config.hidden_size, is_gated=True),
        weights.experts(names, ["down_proj"], config.hidden_size, experts.width),
    )


def _gated(config: DecoderConfig, weights: Weights, prefix: str, width: int) -> Mlp:
    if config.has_fused_weights:
        names, rows = ["gate_up_proj"], [2 * width]
    else:
        names, rows = ["gate_proj", "up_proj"], [width, width]
    return GatedMlp(
        weights.gated(
            [f"{prefix}.{name}" for name in names],
            rows,
            config.hidden_size,
            config.activation,
            has_bias=config.has_mlp_bias,
        ),
        weights.linear([f"{prefix}.down_proj"], [config.hidden_size], width, has_bias=config.has_mlp_bias),
    )


def _norm(config: DecoderConfig, weights: Weights, name: str, width: int) -> Tensor:
    weight = weights.take(f"{name}.weight", width).float()
    return weight + 1 if config.has_offset_norms else weight


def _post_norm(config: DecoderConfig, weights: Weights, name: str) -> Tensor | None:
    return _norm(config, weights, name, config.hidden_size) if config.has_post_norms else None
