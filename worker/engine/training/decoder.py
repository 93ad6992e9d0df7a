"""Defines a Llama whose weights can be trained: it reads whole texts in float32, and keeps no cache."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Self

import torch
import torch.nn.functional as F  # noqa: N812  (the name torch's own documentation uses)
from safetensors.torch import load_file, save_file
from torch import Tensor

from worker.engine.models.checkpoint import read_json
from worker.engine.models.decoder_config import DecoderConfig, read_decoder_config
from worker.engine.models.families.llama import read_llama
from worker.engine.models.layers.rotary_embedding import rotary_angles
from worker.engine.requests.errors import CheckpointError, MissingTensorError, UnsupportedModelError

EMBEDDING, HEAD, NORM = "model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"
COPIED = {".json", ".jinja", ".model"}
# Called with the name of what was computed, and the values: "residual" before each layer and after the last
# one, a norm's weight, or a "down_proj" weight whose input it is.
Watch = Callable[[str, Tensor], None]


class TrainableDecoder:
    """A Llama as its weights by their names in the checkpoint, float32."""

    def __init__(self, config: DecoderConfig, weights: dict[str, Tensor]) -> None:
        self.config = config
        self.weights = weights
        angles = rotary_angles(config.head_dim, config.max_position, config.rope_theta, config.rope_scaling)
        self._cosines, self._sines = angles.unbind(1)  # [max_position, head_dim / 2]

    @classmethod
    def load(cls, directory: Path) -> Self:
        """Read a checkpoint in floats; raises CheckpointError if it is no Llama or has biases."""
        file = directory / "config.json"
        config = read_json(file)
        if config.get("architectures") != ["LlamaForCausalLM"]:
            raise UnsupportedModelError(file, "architectures", "only LlamaForCausalLM can be trained")
        if config.get("quantization_config") is not None:
            raise UnsupportedModelError(file, "quantization_config", "quantized weights cannot be trained")
        shape = read_llama(file, config)
        if shape != read_decoder_config(file, config):
            raise UnsupportedModelError(file, "attention_bias", "biases cannot be trained")
        weights: dict[str, Tensor] = {}
        for part in sorted(directory.glob("*.safetensors")):
            weights |= {name: tensor.float() for name, tensor in load_file(part).items()}
        for name in _names(shape):
            if name not in weights:
                raise MissingTensorError(directory, name, "is missing")
        return cls(shape, {name: weights[name] for name in _names(shape)})

    def save(self, directory: Path, like: Path, dtype: torch.dtype = torch.bfloat16) -> None:
        """Write a checkpoint whose other files are those of the checkpoint `like`, which is another one."""
        directory.mkdir(parents=True, exist_ok=True)
        tensors = {name: tensor.detach().to(dtype).contiguous() for name, tensor in self.weights.items()}
        save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
        for file in like.iterdir():
            if file.suffix in COPIED and not file.name.endswith(".index.json"):
                shutil.copyfile(file, directory / file.name)
        config = read_json(like / "config.json") | {
            "num_hidden_layers": self.config.num_layers,
            "hidden_size": self.config.hidden_size,
            "intermediate_size": self.config.intermediate_size,
            "head_dim": self.config.head_dim,
            "torch_dtype": str(dtype).removeprefix("torch."),
        }
        (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")

    @property
    def num_parameters(self) -> int:
        """Number of weights; an embedding that is the head too counts once."""
        return sum(tensor.numel() for tensor in self.weights.values())

    @property
    def head(self) -> Tensor:
        """The weight that makes logits, [vocab_size, hidden_size]."""
        return self.weights[EMBEDDING if self.config.has_tied_embeddings else HEAD]

    def hidden(self, ids: Tensor, watch: Watch | None = None) -> Tensor:
        """Return the final hidden states [num_rows, length, hidden_size] of ids [num_rows, length]."""
        x = F.embedding(ids, self.weights[EMBEDDING])
        for layer in range(self.config.num_layers):
            if watch is not None:
                watch("residual", x)
            prefix = f"model.layers.{layer}."
            x = x + self._attention(prefix, self._norm(f"{prefix}input_layernorm.weight", x, watch))
            x = x + self._mlp(prefix, self._norm(f"{prefix}post_attention_layernorm.weight", x, watch), watch)
        if watch is not None:
            watch("residual", x)
        return self._norm(NORM, x, watch)

    def _norm(self, name: str, x: Tensor, watch: Watch | None) -> Tensor:
        normed = F.rms_norm(x, x.shape[-1:], self.weights[name], self.config.norm_eps)
        if watch is not None:
            watch(name, normed)
        return normed

    def _attention(self, prefix: str, x: Tensor) -> Tensor:
        num_rows, length, _ = x.shape
        q, k, v = (
            F.linear(x, self.weights[f"{prefix}self_attn.{name}_proj.weight"])
            .view(num_rows, length, -1, self.config.head_dim)
            .transpose(1, 2)
            for name in ("q", "k", "v")
        )
        q, k = self._rotated(q), self._rotated(k)
        group = self.config.num_heads // self.config.num_kv_heads
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
        found = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        found = found.transpose(1, 2).reshape(num_rows, length, -1)
        return F.linear(found, self.weights[f"{prefix}self_attn.o_proj.weight"])

    def _rotated(self, x: Tensor) -> Tensor:
        length = x.shape[2]
        cosines, sines = self._cosines[:length], self._sines[:length]
        left, right = x.chunk(2, dim=-1)
        return torch.cat((left * cosines - right * sines, right * cosines + left * sines), dim=-1)

    def _mlp(self, prefix: str, x: Tensor, watch: Watch | None) -> Tensor:
        gate = F.linear(x, self.weights[f"{prefix}mlp.gate_proj.weight"])
        inner = F.silu(gate) * F.linear(x, self.weights[f"{prefix}mlp.up_proj.weight"])
        name = f"{prefix}mlp.down_proj.weight"
        if watch is not None:
            watch(name, inner)
        return F.linear(inner, self.weights[name])


def resized(
    config: DecoderConfig, num_layers: int, hidden_size: int, intermediate_size: int
) -> DecoderConfig:
    """Return the config with other sizes; heads stay."""
    return replace(
        config,
        num_layers=num_layers,
        hidden_size=hidden_size,
        intermediate_size=intermediate_size,
        windows=config.windows[:num_layers],
    )


def check_is_new(directory: Path) -> None:
    """Raise CheckpointError if the directory holds a checkpoint, which a new one would replace."""
    if (directory / "config.json").exists():
        raise CheckpointError(directory, "", "holds a checkpoint already")


def stored_dtype(directory: Path) -> torch.dtype:
    """Return the dtype of a checkpoint's embedding; raises CheckpointError if it has none."""
    for part in sorted(directory.glob("*.safetensors")):
        tensor = load_file(part).get(EMBEDDING)
        if tensor is not None:
            return tensor.dtype
    raise CheckpointError(directory, EMBEDDING, "is missing")


def _names(config: DecoderConfig) -> list[str]:
    of_layer = ["input_layernorm", "post_attention_layernorm"]
    of_layer += [f"self_attn.{name}_proj" for name in ("q", "k", "v", "o")]
    of_layer += [f"mlp.{name}_proj" for name in ("gate", "up", "down")]
    names = [EMBEDDING, NORM]
    if not config.has_tied_embeddings:
        names.append(HEAD)
    return names + [
        f"model.layers.{layer}.{name}.weight" for layer in range(config.num_layers) for name in of_layer
    ]
