"""Gemma 3, text only: normalised heads, and a window with its own rotation on five of six layers."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from worker.engine.models.checkpoint import read_key, read_size
from worker.engine.models.decoder_config import DecoderConfig, read_windows
from worker.engine.models.families.gemma2 import read_gemma
from worker.engine.requests.errors import UnsupportedModelError

GLOBAL_THETA, LOCAL_THETA = 1_000_000.0, 10_000.0


def read_gemma3(file: Path, config: dict[str, Any]) -> DecoderConfig:
    """Return the shape of a `Gemma3ForCausalLM`."""
    for key in ("attn_logit_softcapping", "final_logit_softcapping"):
        if config.get(key) is not None:
            raise UnsupportedModelError(file, key, "is not supported for Gemma 3")
    # transformers 5 has one rope section per layer type; earlier versions have a key for the local theta.
    local_theta = read_key(file, config, "rope_local_base_freq", float, LOCAL_THETA)
    rope = read_key(file, config, "rope_parameters", dict, {})
    if rope:
        local = read_key(file, rope, "sliding_attention", dict, {})
        if local.get("rope_type", "default") != "default":
            raise UnsupportedModelError(
                file, "rope_parameters.sliding_attention", "only the default is supported"
            )
        local_theta = read_key(file, local, "rope_theta", float, local_theta)
        config = config | {"rope_parameters": rope.get("full_attention")}
    shape = read_gemma(file, {"rope_theta": GLOBAL_THETA} | config)
    pattern = read_size(file, config, "sliding_window_pattern", 6)
    window = read_size(file, config, "sliding_window", 4096)
    is_local = [(index + 1) % pattern != 0 for index in range(shape.num_layers)]
    return replace(
        shape,
        has_head_norms=True,
        windows=read_windows(file, config, window, is_local),
        local_rope_theta=local_theta,
    )
