"""Qwen2 and Qwen2.5: biases on queries, keys and values, and an optional window on the upper layers."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from worker.engine.models.checkpoint import read_key, read_size
from worker.engine.models.decoder_config import DecoderConfig, read_decoder_config, read_windows


def read_qwen2(file: Path, config: dict[str, Any]) -> DecoderConfig:
    """Return the shape of a `Qwen2ForCausalLM`."""
    shape = read_decoder_config(file, config)
    return replace(shape, has_qkv_bias=True, windows=read_qwen_windows(file, config, shape.num_layers))


def read_qwen_windows(file: Path, config: dict[str, Any], num_layers: int) -> tuple[int | None, ...]:
    """Return each layer's window; all None unless `use_sliding_window` is set."""
    if not read_key(file, config, "use_sliding_window", bool, default=False):
        return (None,) * num_layers
    first = read_key(file, config, "max_window_layers", int, 28)
    window = read_size(file, config, "sliding_window", 4096)
    return read_windows(file, config, window, [index >= first for index in range(num_layers)])
