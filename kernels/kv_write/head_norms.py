"""The normalisation that some families put before the rotation."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class HeadNorms:
    """RMS normalisation of each query and key head before the rotation."""

    query: Tensor  # [head_dim] float32
    key: Tensor  # [head_dim] float32
    eps: float
