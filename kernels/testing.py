"""What every operator test shares: the one tolerance table and outputs that show what was not written."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Largest accepted `|actual - expected|`: `absolute + relative * |expected|`."""

    absolute: float
    relative: float


TOLERANCES: dict[torch.dtype, Tolerance] = {
    torch.float32: Tolerance(absolute=1e-5, relative=1e-5),
    torch.float16: Tolerance(absolute=2e-3, relative=2e-3),
    torch.bfloat16: Tolerance(absolute=1.6e-2, relative=1.6e-2),
}


def assert_matches(actual: Tensor, expected: Tensor) -> None:
    """Assert that an operator's output agrees with its float32 truth, by the dtype of the output."""
    tolerance = TOLERANCES[actual.dtype]
    torch.testing.assert_close(
        actual.float(), expected.float(), atol=tolerance.absolute, rtol=tolerance.relative
    )


def nan_filled(*shape: int, dtype: torch.dtype) -> Tensor:
    """Return a tensor of NaN, so that an element an operator leaves out cannot pass for a result."""
    return torch.full(shape, float("nan"), dtype=dtype)
