"""Which architecture a checkpoint has, and how to load it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from worker.engine.errors import CheckpointError, UnsupportedModelError
from worker.engine.input_builder import StepInput
from worker.engine.models.checkpoint import Weights, read_json
from worker.engine.models.llama import load_llama
from worker.engine.models.llama_config import read_llama_config


class Model(Protocol):
    """What the model runner asks of an architecture."""

    def forward(self, step: StepInput, kv_cache: list[Tensor]) -> Tensor:
        """Run a Step and return the final hidden state of its output rows."""

    def logits(self, hidden: Tensor) -> Tensor:
        """Return [num_outputs, vocab_size]."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """A checkpoint's shape as the engine needs it, and the way to its weights."""

    name: str
    num_layers: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_position: int
    load: Callable[[Weights, int], Model]  # from the weights and the longest Sequence


def _llama(file: Path, config: dict[str, Any]) -> Architecture:
    shape = read_llama_config(file, config)
    return Architecture(
        name="LlamaForCausalLM",
        num_layers=shape.num_layers,
        num_kv_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        vocab_size=shape.vocab_size,
        max_position=shape.max_position,
        load=lambda weights, max_model_len: load_llama(shape, weights, max_model_len),
    )


ARCHITECTURES: dict[str, Callable[[Path, dict[str, Any]], Architecture]] = {"LlamaForCausalLM": _llama}


def read_architecture(directory: Path) -> Architecture:
    """Return what config.json describes; raises CheckpointError naming the file and key that is wrong."""
    if not directory.is_dir():
        raise CheckpointError(directory, "", "no such directory")
    file = directory / "config.json"
    config = read_json(file)
    names = config.get("architectures")
    if not isinstance(names, list) or not names:
        raise CheckpointError(file, "architectures", "is missing")
    for name in names:
        if name in ARCHITECTURES:
            return ARCHITECTURES[name](file, config)
    raise UnsupportedModelError(file, "architectures", f"{names} is not built: {', '.join(ARCHITECTURES)} is")
