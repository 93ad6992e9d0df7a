"""Holds Medusa heads: small layers that say from one hidden state what several later tokens may be.

Source: Cai et al., "Medusa", arXiv:2401.10774. A head is one residual block. Its logits are those of the
model's own head, so a file of heads is small. It reads the embedding of the token that the hidden state's
logits chose, too: that token is known by then, and what follows depends on it (Ankner et al., "Hydra",
arXiv:2402.05109).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Self

import torch
import torch.nn.functional as F  # noqa: N812  (the name torch's own documentation uses)
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from kernels.quantization.int8 import quantize_int8
from worker.engine.models.layers.linear import Projection, int8_projection
from worker.engine.requests.errors import CheckpointError, MissingTensorError, TensorShapeError
from worker.values.model_files import HEADS_FILE

CPU = torch.device("cpu")


class MedusaHeads:
    """The heads of a model: head `k` guesses the token `k + 2` places after that of a hidden state.

    The next place is the model's own to choose.
    """

    # The product of all heads where it is not in floats.
    _product: Projection | None = None

    def __init__(self, weights: Tensor, biases: Tensor) -> None:
        """Hold `weights` [num_heads, hidden_size, 2 * hidden_size] and `biases` [num_heads, hidden_size]."""
        self.weights, self.biases = weights, biases

    @classmethod
    def new(cls, num_heads: int, hidden_size: int) -> Self:
        """Return heads that say what the model itself says for the next token."""
        return cls(torch.zeros(num_heads, hidden_size, 2 * hidden_size), torch.zeros(num_heads, hidden_size))

    @classmethod
    def load(
        cls, directory: Path, hidden_size: int, dtype: torch.dtype, device: torch.device = CPU
    ) -> Self | None:
        """Return the heads beside a checkpoint; None if it has none.

        Raises CheckpointError for a file that cannot be read or does not fit the model.
        """
        file = directory / HEADS_FILE
        if not file.is_file():
            return None
        try:
            tensors = load_file(file)
        except (OSError, SafetensorError) as error:
            raise CheckpointError(file, "", f"cannot be read: {error}") from error
        weights: list[Tensor] = []
        biases: list[Tensor] = []
        for head in range(max(1, len(tensors) // 2)):
            weights.append(_taken(file, tensors, f"heads.{head}.weight", hidden_size, 2 * hidden_size))
            biases.append(_taken(file, tensors, f"heads.{head}.bias", hidden_size))
        return cls(*(torch.stack(one).to(device, dtype) for one in (weights, biases)))

    def save(self, directory: Path, dtype: torch.dtype) -> None:
        """Write the heads beside a checkpoint."""
        tensors = {
            f"heads.{head}.{name}": tensor.detach().to(dtype).clone()
            for name, stacked in (("weight", self.weights), ("bias", self.biases))
            for head, tensor in enumerate(stacked)
        }
        save_file(tensors, directory / HEADS_FILE, metadata={"format": "pt"})

    def quantize(self) -> None:
        """Compute in int8 from now on; the heads cannot be trained any more."""
        weight = quantize_int8(self.weights.flatten(0, 1))
        self._product = int8_projection(weight, self.biases.flatten(), self.weights.dtype)

    @property
    def num_heads(self) -> int:
        """Number of heads, and so of tokens that are guessed."""
        return len(self.weights)

    def states(self, hidden: Tensor, embedded: Tensor, count: int) -> Tensor:
        """Return what the first `count` heads make of hidden states [num_rows, hidden_size].

        `embedded` are the embeddings of the tokens chosen from these, of the same shape. The result
        [num_rows, count, hidden_size] is for the model's own head to make logits of.
        """
        size = hidden.shape[1:]
        read = torch.cat((hidden, F.rms_norm(embedded, size).to(hidden.dtype)), dim=1)
        if self._product is None:
            inner = F.linear(read, self.weights[:count].flatten(0, 1), self.biases[:count].flatten())
        else:
            inner = self._product(read)
        return hidden.unsqueeze(1) + F.silu(inner.view(len(hidden), -1, *size)[:, :count])


def _taken(file: Path, tensors: Mapping[str, Tensor], name: str, *shape: int) -> Tensor:
    if name not in tensors:
        raise MissingTensorError(file, name, "is missing")
    found = tuple(tensors[name].shape)
    if found != shape:
        raise TensorShapeError(file, name, f"has shape {list(found)}, but the model implies {list(shape)}")
    return tensors[name]
