"""Defines a decoder whose weights can be trained: it reads whole texts in float32, and keeps no cache."""

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Self

import torch
import torch.nn.functional as F  # noqa: N812  (the name torch's own documentation uses)
from safetensors.torch import load_file, save_file
from torch import Tensor

from worker.engine.models.checkpoint import read_json
from worker.engine.models.decoder_config import LAYER_TYPES, DecoderConfig
from worker.engine.models.layers.rotary_embedding import RopeScaling, rotary_angles
from worker.engine.models.registry import read_shape
from worker.engine.requests.errors import CheckpointError, MissingTensorError, UnsupportedModelError
from worker.values.model_files import weight_files

EMBEDDING, HEAD, NORM = "model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"
COPIED = {".json", ".jinja", ".model"}
# Called with the name of what was computed, and the values: "residual" before each layer and after the last
# one, the weight of a norm before a product or the head, or a "down_proj" weight whose input it is.
Watch = Callable[[str, Tensor], None]
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
}


class TrainableDecoder:
    """A dense decoder as its weights by their names in the checkpoint, float32."""

    def __init__(self, config: DecoderConfig, weights: dict[str, Tensor]) -> None:
        self.config = config
        self.weights = weights
        angles = local = rotary_angles(
            config.head_dim, config.max_position, config.rope_theta, config.rope_scaling
        )
        if config.local_rope_theta is not None:
            local = rotary_angles(
                config.head_dim, config.max_position, config.local_rope_theta, RopeScaling()
            )
        # For each layer, [max_position, 2, head_dim / 2].
        self._angles = [angles if window is None else local for window in config.windows]

    @classmethod
    def load(cls, directory: Path) -> Self:
        """Read a checkpoint in floats; raises CheckpointError for what cannot be trained."""
        file = directory / "config.json"
        if read_json(file).get("quantization_config") is not None:
            raise UnsupportedModelError(file, "quantization_config", "quantized weights cannot be trained")
        shape = read_shape(directory)
        for name, is_there in (
            ("a mixture of experts", shape.experts is not None),
            ("fused weights", shape.has_fused_weights),
            ("soft caps", shape.attention_soft_cap is not None or shape.logit_soft_cap is not None),
        ):
            if is_there:
                raise UnsupportedModelError(file, "architectures", f"a model with {name} cannot be trained")
        weights: dict[str, Tensor] = {}
        for part in weight_files(directory):
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
        before = read_json(like / "config.json")
        config = before | {
            "num_hidden_layers": self.config.num_layers,
            "hidden_size": self.config.hidden_size,
            "intermediate_size": self.config.intermediate_size,
            "head_dim": self.config.head_dim,
            "torch_dtype": str(dtype).removeprefix("torch."),
        }
        if "layer_types" in before or any(read_shape(like).windows):
            config["layer_types"] = [LAYER_TYPES[window is not None] for window in self.config.windows]
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
        if self.config.embedding_scale is not None:
            x = x * self.config.embedding_scale
        mlp_norm = "pre_feedforward_layernorm" if self.config.has_post_norms else "post_attention_layernorm"
        for layer in range(self.config.num_layers):
            if watch is not None:
                watch("residual", x)
            prefix = f"model.layers.{layer}."
            attended = self._attention(layer, self._norm(f"{prefix}input_layernorm.weight", x, watch))
            x = x + self._post_norm(f"{prefix}post_attention_layernorm.weight", attended)
            found = self._mlp(prefix, self._norm(f"{prefix}{mlp_norm}.weight", x, watch), watch)
            x = x + self._post_norm(f"{prefix}post_feedforward_layernorm.weight", found)
        if watch is not None:
            watch("residual", x)
        return self._norm(NORM, x, watch)

    def _norm(self, name: str, x: Tensor, watch: Watch | None = None) -> Tensor:
        weight = self.weights[name]
        if self.config.has_offset_norms:
            weight = weight + 1
        normed = F.rms_norm(x, x.shape[-1:], weight, self.config.norm_eps)
        if watch is not None:
            watch(name, normed)
        return normed

    def _post_norm(self, name: str, x: Tensor) -> Tensor:
        return self._norm(name, x) if self.config.has_post_norms else x

    def _linear(self, name: str, x: Tensor) -> Tensor:
        return F.linear(x, self.weights[f"{name}.weight"], self.weights.get(f"{name}.bias"))

    def _attention(self, layer: int, x: Tensor) -> Tensor:
        prefix = f"model.layers.{layer}.self_attn."
        num_rows, length, _ = x.shape
        q, k, v = (
            self._linear(f"{prefix}{name}_proj", x).view(num_rows, length, -1, self.config.head_dim)
            for name in ("q", "k", "v")
        )
        if self.config.has_head_norms:
            q, k = self._norm(f"{prefix}q_norm.weight", q), self._norm(f"{prefix}k_norm.weight", k)
        q, k, v = (one.transpose(1, 2) for one in (q, k, v))
        cosines, sines = self._angles[layer][:length].unbind(1)
        q, k = _rotated(q, cosines, sines), _rotated(k, cosines, sines)
        group = self.config.num_heads // self.config.num_kv_heads
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
        mask = _mask(length, self.config.windows[layer])
        found = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=mask is None, scale=self.config.attention_scale
        )
        return self._linear(f"{prefix}o_proj", found.transpose(1, 2).reshape(num_rows, length, -1))

    def _mlp(self, prefix: str, x: Tensor, watch: Watch | None) -> Tensor:
        activation = ACTIVATIONS[self.config.activation]
        inner = activation(self._linear(f"{prefix}mlp.gate_proj", x)) * self._linear(
            f"{prefix}mlp.up_proj", x
        )
        name = f"{prefix}mlp.down_proj"
        if watch is not None:
            watch(f"{name}.weight", inner)
        return self._linear(name, inner)


def resized(
    config: DecoderConfig, layers: Sequence[int], hidden_size: int, intermediate_size: int
) -> DecoderConfig:
    """Return the config with some of its layers and other sizes; heads stay."""
    scale = config.embedding_scale
    return replace(
        config,
        num_layers=len(layers),
        hidden_size=hidden_size,
        intermediate_size=intermediate_size,
        windows=tuple(config.windows[layer] for layer in layers),
        # As it is read of a checkpoint of that size.
        embedding_scale=None if scale is None else hidden_size**0.5,
    )


def check_is_new(directory: Path) -> None:
    """Raise CheckpointError if the directory holds a checkpoint, which a new one would replace."""
    if (directory / "config.json").exists():
        raise CheckpointError(directory, "", "holds a checkpoint already")


def stored_dtype(directory: Path) -> torch.dtype:
    """Return the dtype of a checkpoint's embedding; raises CheckpointError if it has none."""
    for part in weight_files(directory):
        tensor = load_file(part).get(EMBEDDING)
        if tensor is not None:
            return tensor.dtype
    raise CheckpointError(directory, EMBEDDING, "is missing")


def _rotated(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    left, right = x.chunk(2, dim=-1)
    return torch.cat((left * cosines - right * sines, right * cosines + left * sines), dim=-1)


def _mask(length: int, window: int | None) -> Tensor | None:
    """Return which places each place reads [length, length]; None: all up to itself."""
    if window is None or length <= window:
        return None
    places = torch.arange(length)
    distance = places[:, None] - places
    return (distance >= 0) & (distance < window)


def _names(config: DecoderConfig) -> list[str]:
    norms = ["input_layernorm", "post_attention_layernorm"]
    if config.has_post_norms:
        norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
    if config.has_head_norms:
        norms += ["self_attn.q_norm", "self_attn.k_norm"]
    of_layer = [f"{norm}.weight" for norm in norms]
    for product, has_bias in (
        ("self_attn.q_proj", config.has_qkv_bias),
        ("self_attn.k_proj", config.has_qkv_bias),
        ("self_attn.v_proj", config.has_qkv_bias),
        ("self_attn.o_proj", config.has_output_bias),
        ("mlp.gate_proj", config.has_mlp_bias),
        ("mlp.up_proj", config.has_mlp_bias),
        ("mlp.down_proj", config.has_mlp_bias),
    ):
        of_layer.append(f"{product}.weight")
        if has_bias:
            of_layer.append(f"{product}.bias")
    names = [EMBEDDING, NORM]
    if not config.has_tied_embeddings:
        names.append(HEAD)
    return names + [f"model.layers.{layer}.{name}" for layer in range(config.num_layers) for name in of_layer]
