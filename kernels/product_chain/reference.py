"""Runs a chain by its formulas, with sums in float64: those of integers are exact there."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.gate_mul import reference as gates
from kernels.int8_linear.reference import quantize
from kernels.product_chain.op import After
from kernels.quantization import Int8Weight
from kernels.rms_norm import reference as norms


@dataclass(frozen=True, slots=True)
class Step:
    """A link whose weight is not packed."""

    weight: Int8Weight | Tensor  # or in bfloat16
    bias: Tensor | None = None
    after: After = After.NOTHING
    norm: Tensor | None = None
    post_norm: Tensor | None = None


def run_chain(steps: Sequence[Step], x: Tensor, residual: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return the float32 reference result of `kernels.product_chain.run_chain`, and the new residual."""
    for step in steps:
        x = _product(step, x)
        if step.after is After.NORM:
            assert step.norm is not None  # noqa: S101  (as the op has checked)
            if step.post_norm is not None:
                x = norms.rms_norm(x, step.post_norm, eps)
            x, residual = norms.add_rms_norm(x, residual, step.norm, eps)
        elif step.after is After.SILU:
            x = gates.silu_mul(x)
        elif step.after is After.GELU:
            x = gates.gelu_mul(x)
    return x, residual


def _product(step: Step, x: Tensor) -> Tensor:
    if isinstance(step.weight, Tensor):
        out = x.to(step.weight.dtype).double() @ step.weight.double().T
    else:
        levels, scales = quantize(x)
        sums = levels.double() @ step.weight.levels.double().T
        out = sums * scales.double() * step.weight.scales.double()
    return (out if step.bias is None else out + step.bias.double()).to(torch.float32)
