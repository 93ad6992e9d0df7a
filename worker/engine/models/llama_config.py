"""What a Llama-family config.json says, in our words."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from worker.engine.errors import CheckpointError, UnsupportedModelError
from worker.engine.layers.rotary_embedding import RopeScaling
from worker.engine.models.checkpoint import read_key


@dataclass(frozen=True, slots=True)
class LlamaConfig:
    """The shape of a Llama model."""

    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    max_position: int
    norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling
    has_tied_embeddings: bool
    has_attention_bias: bool
    has_mlp_bias: bool


def read_llama_config(file: Path, config: dict[str, Any]) -> LlamaConfig:
    """Return the shape that `config` gives; raises CheckpointError naming the key that is wrong."""
    activation = read_key(file, config, "hidden_act", str, "silu")
    if activation != "silu":
        raise UnsupportedModelError(file, "hidden_act", f"{activation!r} is not built, only 'silu' is")
    hidden_size = read_key(file, config, "hidden_size", int)
    num_heads = read_key(file, config, "num_attention_heads", int)
    num_kv_heads = read_key(file, config, "num_key_value_heads", int, num_heads)
    if num_heads % num_kv_heads:
        raise CheckpointError(
            file, "num_key_value_heads", f"{num_kv_heads} does not divide {num_heads} heads"
        )
    rope_theta, rope_scaling = _read_rope(file, config)
    return LlamaConfig(
        num_layers=read_key(file, config, "num_hidden_layers", int),
        hidden_size=hidden_size,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=read_key(file, config, "head_dim", int, hidden_size // num_heads),
        intermediate_size=read_key(file, config, "intermediate_size", int),
        vocab_size=read_key(file, config, "vocab_size", int),
        max_position=read_key(file, config, "max_position_embeddings", int, 2048),
        norm_eps=read_key(file, config, "rms_norm_eps", float, 1e-6),
        rope_theta=rope_theta,
        rope_scaling=rope_scaling,
        has_tied_embeddings=read_key(file, config, "tie_word_embeddings", bool, default=False),
        has_attention_bias=read_key(file, config, "attention_bias", bool, default=False),
        has_mlp_bias=read_key(file, config, "mlp_bias", bool, default=False),
    )


def _read_rope(file: Path, config: dict[str, Any]) -> tuple[float, RopeScaling]:
    """Read `rope_parameters` (transformers 5), or `rope_theta` and `rope_scaling` (before it)."""
    section = "rope_parameters" if config.get("rope_parameters") is not None else "rope_scaling"
    rope = read_key(file, config, section, dict, {})
    theta = read_key(file, rope, "rope_theta", float, read_key(file, config, "rope_theta", float, 10000.0))
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return theta, RopeScaling()
    factor = read_key(file, rope, "factor", float)
    if kind == "linear":
        return theta, RopeScaling(kind="linear", factor=factor)
    if kind == "llama3":
        return theta, RopeScaling(
            kind="llama3",
            factor=factor,
            low_freq_factor=read_key(file, rope, "low_freq_factor", float),
            high_freq_factor=read_key(file, rope, "high_freq_factor", float),
            original_max_position=read_key(file, rope, "original_max_position_embeddings", int),
        )
    raise UnsupportedModelError(
        file, f"{section}.rope_type", f"{kind!r} is not built: default, linear, llama3 are"
    )
