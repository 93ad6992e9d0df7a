"""Mistral: a window on every layer, in the versions that have one."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from worker.engine.models.checkpoint import read_size
from worker.engine.models.decoder_config import DecoderConfig, read_decoder_config


def read_mistral(file: Path, config: dict[str, Any]) -> DecoderConfig:
    """Return the shape of a `MistralForCausalLM`."""
    shape = read_decoder_config(file, config)
    # An absent key means 4096, which the first version left out; null means no window.
    is_null = "sliding_window" in config and config["sliding_window"] is None
    window = None if is_null else read_size(file, config, "sliding_window", 4096)
    return replace(shape, windows=(window,) * shape.num_layers)
