"""Checks of tensor shapes that all formats share."""

from torch import Tensor

# The least maximum from which a scale is computed, so that all-zero values stay zero.
SMALLEST_MAXIMUM = 1e-8


def check_matrix(name: str, weight: Tensor) -> None:
    """Raise ValueError unless `weight` is [out_features, in_features] with at least one element."""
    if weight.dim() != 2 or not weight.numel():
        raise ValueError(f"{name}: weight is {tuple(weight.shape)}, not [out_features, in_features]")


def check_shape(name: str, field: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
    """Raise ValueError naming the field unless its tensor has this shape."""
    if tuple(tensor.shape) != shape:
        raise ValueError(f"{name}: {field} is {tuple(tensor.shape)}, not {shape}")


def num_bytes(*tensors: Tensor | None) -> int:
    """Return the bytes of all these tensors together."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors if tensor is not None)
