"""Weights of the normalisation that some model families apply before the rotation."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class HeadNorms:
    """Weights of the RMS normalisation of each query and key head before the rotation."""

    query: Tensor  # [head_dim] float32
    key: Tensor  # [head_dim] float32
    eps: float
