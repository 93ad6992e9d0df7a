"""Finds what of a decoder matters least on a text, and cuts it out.

Sources: Men et al., ShortGPT, arXiv:2403.03853 (layers); Muralidharan et al., Minitron, arXiv:2407.14679
(width).
"""

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F  # noqa: N812  (the name torch's own documentation uses)
from torch import Tensor

from worker.engine.training.decoder import TrainableDecoder, resized

# What has no size but that of heads, which stay.
OF_HEADS = {f"self_attn.{name}_proj.bias" for name in "qkv"} | {
    f"self_attn.{name}_norm.weight" for name in "qk"
}


@dataclass(slots=True)
class Importance:
    """How much each part of a decoder changes what it computes; of the same kind, larger is more."""

    layers: Tensor  # [num_layers]: one minus the cosine between a layer's input and its output
    hidden: Tensor  # [hidden_size]: the size of each value after the norms
    inner: list[Tensor]  # of each layer [intermediate_size]: the size of what each inner value adds


@dataclass(slots=True)
class _Watcher:
    """Adds up the importance of what a decoder computes."""

    model: TrainableDecoder
    layers: list[float] = field(default_factory=list)
    hidden: Tensor = field(init=False)
    inner: dict[str, Tensor] = field(default_factory=dict)
    _before: Tensor | None = None

    def __post_init__(self) -> None:
        self.hidden = torch.zeros(self.model.config.hidden_size)

    def __call__(self, name: str, values: Tensor) -> None:
        rows = values.flatten(0, 1)
        if name == "residual":
            if self._before is not None:
                self.layers.append(1 - F.cosine_similarity(self._before, rows, dim=-1).mean().item())
            self._before = rows
        elif name.endswith("down_proj.weight"):
            size = rows.abs().mean(0) * self.model.weights[name].norm(dim=0)
            self.inner[name] = self.inner.get(name, 0) + size
        else:
            self.hidden += rows.abs().mean(0)

    def rest(self) -> None:
        """Forget the last layer's output, before another row."""
        self._before = None


@torch.no_grad()
def measure(model: TrainableDecoder, rows: Tensor) -> Importance:
    """Return the importance of a model's parts on rows of token ids [num_rows, length]."""
    watcher = _Watcher(model)
    for row in rows:
        model.hidden(row[None], watcher)
        watcher.rest()
    layers = torch.tensor(watcher.layers).view(len(rows), -1).mean(0)
    return Importance(layers, watcher.hidden, list(watcher.inner.values()))


@torch.no_grad()
def prune(
    model: TrainableDecoder, importance: Importance, num_layers: int, hidden_size: int, intermediate_size: int
) -> TrainableDecoder:
    """Return a decoder of the most important parts, in their order; raises ValueError for a larger one."""
    config = model.config
    for name, size, most in (
        ("layers", num_layers, config.num_layers),
        ("hidden", hidden_size, config.hidden_size),
        ("intermediate", intermediate_size, config.intermediate_size),
    ):
        if not 1 <= size <= most:
            raise ValueError(f"{name} must be from 1 to {most}, not {size}")
    layers, hidden = _best(importance.layers, num_layers), _best(importance.hidden, hidden_size)
    weights: dict[str, Tensor] = {}
    for place, layer in enumerate(layers.tolist()):
        inner = _best(importance.inner[layer], intermediate_size)
        own = f"model.layers.{layer}."
        for name, tensor in model.weights.items():
            if name.startswith(own):
                part = name.removeprefix(own)
                weights[f"model.layers.{place}.{part}"] = _cut(part, tensor, hidden, inner)
    # The head and the embedding have a column, the norm a value, for each hidden value.
    others = {name: tensor for name, tensor in model.weights.items() if ".layers." not in name}
    weights |= {name: tensor[..., hidden].clone() for name, tensor in others.items()}
    kept = resized(config, layers.tolist(), hidden_size, intermediate_size)
    return TrainableDecoder(kept, weights)


def _best(importance: Tensor, count: int) -> Tensor:
    """Return the places of the largest values, in order."""
    return importance.topk(count).indices.sort().values


def _cut(part: str, tensor: Tensor, hidden: Tensor, inner: Tensor) -> Tensor:
    if part == "mlp.down_proj.weight":
        return tensor[hidden][:, inner]
    if part == "self_attn.o_proj.weight":
        return tensor[hidden].clone()
    if part.startswith(("mlp.gate_proj.", "mlp.up_proj.")):
        tensor = tensor[inner]
        return tensor[:, hidden] if tensor.ndim > 1 else tensor
    if part in OF_HEADS:
        return tensor.clone()
    return tensor[..., hidden].clone()
