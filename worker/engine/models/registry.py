"""Finds the architecture of a checkpoint by the name in its config.json, and how to load it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from kernels.kv_write import PagedCache
from worker.engine.models.checkpoint import Weights, read_json
from worker.engine.models.decoder_config import DecoderConfig
from worker.engine.models.decoder_weights import load_decoder
from worker.engine.models.families.gemma2 import read_gemma2
from worker.engine.models.families.gemma3 import read_gemma3
from worker.engine.models.families.llama import read_llama
from worker.engine.models.families.mistral import read_mistral
from worker.engine.models.families.phi3 import read_phi3
from worker.engine.models.families.qwen2 import read_qwen2
from worker.engine.models.families.qwen3 import read_qwen3
from worker.engine.models.families.qwen3_moe import read_qwen3_moe
from worker.engine.models.step_input import StepInput
from worker.engine.requests.errors import CheckpointError, UnsupportedModelError


class LoadedModel(Protocol):
    """Interface of a loaded model, as the model runner uses it."""

    @property
    def is_one_region(self) -> bool:
        """Whether nearly all of it is one parallel region on a CPU, which holds no lock of Python."""

    def forward(self, step: StepInput, kv_cache: Sequence[PagedCache]) -> Tensor:
        """Run a Step and return the final hidden states [num_outputs, hidden] of its output rows."""

    def embedded(self, token_ids: Tensor) -> Tensor:
        """Return the embeddings [num_tokens, hidden] of tokens, float32, without the model's scale."""

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits [num_outputs, vocab_size] of hidden states."""

    def likeliest(self, hidden: Tensor) -> Tensor | None:
        """Return the token of each row's largest logit, -1 if that is not finite; None: compute logits."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """Shape of a checkpoint's model, with the function that loads its weights."""

    name: str
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    hidden_size: int
    vocab_size: int
    max_position: int
    windows: tuple[int | None, ...]  # of each layer's attention
    load: Callable[[Weights, int], LoadedModel]  # from the weights and the longest Sequence


ARCHITECTURES: dict[str, Callable[[Path, dict[str, Any]], DecoderConfig]] = {
    "LlamaForCausalLM": read_llama,
    "Qwen2ForCausalLM": read_qwen2,
    "MistralForCausalLM": read_mistral,
    "Qwen3ForCausalLM": read_qwen3,
    "Phi3ForCausalLM": read_phi3,
    "Gemma2ForCausalLM": read_gemma2,
    "Gemma3ForCausalLM": read_gemma3,
    "Qwen3MoeForCausalLM": read_qwen3_moe,
}


def read_architecture(directory: Path) -> Architecture:
    """Return the architecture in config.json; raises CheckpointError naming the file and key at fault."""
    name, shape = _named_shape(directory)
    return _architecture(name, shape)


def read_shape(directory: Path) -> DecoderConfig:
    """Return the shape in config.json; raises CheckpointError naming the file and key at fault."""
    return _named_shape(directory)[1]


def _named_shape(directory: Path) -> tuple[str, DecoderConfig]:
    if not directory.is_dir():
        raise CheckpointError(directory, "", "no such directory")
    file = directory / "config.json"
    config = read_json(file)
    names = config.get("architectures")
    if not isinstance(names, list) or not names:
        raise CheckpointError(file, "architectures", "is missing")
    for name in names:
        if isinstance(name, str) and name in ARCHITECTURES:
            return name, ARCHITECTURES[name](file, config)
    raise UnsupportedModelError(
        file, "architectures", f"{names} is not supported; supported are {', '.join(ARCHITECTURES)}"
    )


def _architecture(name: str, shape: DecoderConfig) -> Architecture:
    return Architecture(
        name=name,
        num_layers=shape.num_layers,
        num_heads=shape.num_heads,
        num_kv_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        hidden_size=shape.hidden_size,
        vocab_size=shape.vocab_size,
        max_position=shape.max_position,
        windows=shape.windows,
        load=lambda weights, max_model_len: load_decoder(shape, weights, max_model_len),
    )
