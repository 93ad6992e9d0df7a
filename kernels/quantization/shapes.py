"""What every format asks of its tensors."""

from torch import Tensor

# What all-zero values are scaled by, so that they stay zero.
SMALLEST_MAXIMUM = 1e-8


def check_matrix(name: str, weight: Tensor) -> None:
    """Raise ValueError unless `weight` is [out_features, in_features] with at least one element."""
    if weight.dim() != 2 or not weight.numel():
        raise ValueError(f"{name}: weight is {tuple(weight.shape)}, not [out_features, in_features]")


def check_shape(name: str, field: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
    """Raise ValueError naming the field when its shape is another."""
    if tuple(tensor.shape) != shape:
        raise ValueError(f"{name}: {field} is {tuple(tensor.shape)}, not {shape}")


def num_bytes(*tensors: Tensor | None) -> int:
    """Return what these take together."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors if tensor is not None)
