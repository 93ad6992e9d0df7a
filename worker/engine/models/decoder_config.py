"""Reads config.json into a DecoderConfig. A family's own file adds its special keys."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from worker.engine.models.checkpoint import read_key, read_size
from worker.engine.models.layers.rotary_embedding import RopeScaling
from worker.engine.requests.errors import CheckpointError, UnsupportedModelError

MAX_LAYERS = 10_000
LAYER_TYPES = ("full_attention", "sliding_attention")


@dataclass(frozen=True, slots=True)
class ExpertsConfig:
    """Shape of a mixture of experts."""

    num_experts: int
    num_chosen: int
    width: int
    is_normalised: bool
    layers: frozenset[int]  # layers with a mixture; the others are dense


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """Shape of a decoder; only some families set the fields with a default."""

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
    activation: str
    attention_scale: float
    windows: tuple[int | None, ...]  # tokens that each layer's attention reads; None: all
    has_qkv_bias: bool = False
    has_output_bias: bool = False
    has_mlp_bias: bool = False
    has_head_norms: bool = False  # queries and keys are normalised
    has_post_norms: bool = False  # attention and MLP outputs are normalised too
    has_fused_weights: bool = False  # the checkpoint holds qkv_proj and gate_up_proj
    has_offset_norms: bool = False  # norms scale by one plus their weight
    embedding_scale: float | None = None
    attention_soft_cap: float | None = None
    logit_soft_cap: float | None = None
    # Rotary theta of layers with a window, without scaling; None: as in the other layers.
    local_rope_theta: float | None = None
    experts: ExpertsConfig | None = None


def read_decoder_config(
    file: Path, config: dict[str, Any], *, activation_key: str = "hidden_act", activation: str = "silu"
) -> DecoderConfig:
    """Return the shape that `config` describes; raises CheckpointError naming the key that is wrong."""
    found = read_key(file, config, activation_key, str, activation)
    if found != activation:
        raise UnsupportedModelError(
            file, activation_key, f"{found!r} is not supported, only {activation!r} is"
        )
    hidden_size = read_size(file, config, "hidden_size")
    num_heads = read_size(file, config, "num_attention_heads")
    num_kv_heads = read_size(file, config, "num_key_value_heads", num_heads)
    if num_heads % num_kv_heads:
        raise CheckpointError(
            file, "num_key_value_heads", f"{num_heads} attention heads are not a multiple of {num_kv_heads}"
        )
    num_layers = read_size(file, config, "num_hidden_layers", most=MAX_LAYERS)
    head_dim = read_size(file, config, "head_dim", hidden_size // num_heads)
    rope_theta, rope_scaling = read_rope(file, config)
    return DecoderConfig(
        num_layers=num_layers,
        hidden_size=hidden_size,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        intermediate_size=read_size(file, config, "intermediate_size"),
        vocab_size=read_size(file, config, "vocab_size"),
        max_position=read_size(file, config, "max_position_embeddings", 2048),
        norm_eps=read_key(file, config, "rms_norm_eps", float, 1e-6),
        rope_theta=rope_theta,
        rope_scaling=rope_scaling,
        has_tied_embeddings=read_key(file, config, "tie_word_embeddings", bool, default=False),
        activation=activation,
        attention_scale=head_dim**-0.5,
        windows=(None,) * num_layers,
    )


def read_windows(
    file: Path, config: dict[str, Any], window: int | None, is_local: list[bool]
) -> tuple[int | None, ...]:
    """Return each layer's window, `window` or None, by the config's `layer_types` or else by `is_local`."""
    types = read_key(file, config, "layer_types", list, [])
    if types:
        if len(types) != len(is_local) or any(one not in LAYER_TYPES for one in types):
            raise UnsupportedModelError(file, "layer_types", f"{types!r} is not supported")
        is_local = [kind == "sliding_attention" for kind in types]
    if window is None and any(is_local):
        raise CheckpointError(file, "sliding_window", "is missing")
    return tuple(window if local else None for local in is_local)


def read_rope(file: Path, config: dict[str, Any]) -> tuple[float, RopeScaling]:
    """Return theta and scaling: `rope_parameters` (transformers 5), or `rope_theta` and `rope_scaling`."""
    section = "rope_parameters" if config.get("rope_parameters") is not None else "rope_scaling"
    rope = read_key(file, config, section, dict, {})
    theta = read_key(file, rope, "rope_theta", float, read_key(file, config, "rope_theta", float, 10000.0))
    share = read_key(file, rope, "partial_rotary_factor", float, 1.0)
    if read_key(file, config, "partial_rotary_factor", float, share) != 1:
        raise UnsupportedModelError(file, "partial_rotary_factor", "only 1 is supported")
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return theta, RopeScaling()
    if kind not in ("linear", "llama3"):
        raise UnsupportedModelError(
            file,
            f"{section}.rope_type",
            f"{kind!r} is not supported; supported are default, linear and llama3",
        )
    factor = read_key(file, rope, "factor", float)
    if kind == "linear":
        return theta, RopeScaling(kind="linear", factor=factor)
    return theta, RopeScaling(
        kind="llama3",
        factor=factor,
        low_freq_factor=read_key(file, rope, "low_freq_factor", float),
        high_freq_factor=read_key(file, rope, "high_freq_factor", float),
        original_max_position=read_size(file, rope, "original_max_position_embeddings"),
    )
