"""Computes the rotary cosines and sines of every position, with the checkpoint's scaling."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """Scaling of rotary frequencies for longer contexts; `kind` is "default", "linear" or "llama3"."""

    kind: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position: int = 8192


def inverse_frequencies(head_dim: int, theta: float, scaling: RopeScaling) -> Tensor:
    """Return the radians per position, float32 [head_dim / 2].

    The llama3 rule keeps the frequencies of short wavelengths, divides those of long ones by `factor`, and
    blends between. Source: Llama 3.1's published reference, as in transformers'
    `_compute_llama3_parameters`.
    """
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    frequencies = 1.0 / (theta**exponents)
    if scaling.kind == "linear":
        return frequencies / scaling.factor
    if scaling.kind == "llama3":
        wavelengths = 2 * math.pi / frequencies
        turns = scaling.original_max_position / wavelengths
        share = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
        share = share.clamp(0, 1)
        return frequencies * (share + (1 - share) / scaling.factor)
    return frequencies


def rotary_angles(head_dim: int, max_position: int, theta: float, scaling: RopeScaling) -> Tensor:
    """Return every position's cosines, then its sines: float32 [max_position, 2, head_dim / 2]."""
    angles = torch.outer(torch.arange(max_position).float(), inverse_frequencies(head_dim, theta, scaling))
    return torch.stack((angles.cos(), angles.sin()), dim=1)
