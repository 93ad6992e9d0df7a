"""Shared tools of the operator tests: the table of tolerances, and outputs that reveal unwritten elements."""

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
    """Assert that an output matches its float32 reference within the tolerance of the output's dtype."""
    tolerance = TOLERANCES[actual.dtype]
    torch.testing.assert_close(
        actual.float(), expected.float(), atol=tolerance.absolute, rtol=tolerance.relative
    )


def nan_filled(*shape: int, dtype: torch.dtype) -> Tensor:
    """Return a tensor of NaN, so that an element that an operator does not write cannot pass for a result."""
    return torch.full(shape, float("nan"), dtype=dtype)
