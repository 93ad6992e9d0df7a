"""Phi-3: the checkpoint holds QKV and gate-up fused. Its long-context rotation is not implemented."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from worker.engine.models.checkpoint import read_size
from worker.engine.models.decoder_config import DecoderConfig, read_decoder_config


def read_phi3(file: Path, config: dict[str, Any]) -> DecoderConfig:
    """Return the shape of a `Phi3ForCausalLM`."""
    shape = read_decoder_config(file, config)
    window = None
    if config.get("sliding_window") is not None:
        window = read_size(file, config, "sliding_window")
    return replace(shape, has_fused_weights=True, windows=(window,) * shape.num_layers)
