"""Checks the arguments of weight-only products and chooses the regime from the GPU's table."""

import torch
from torch import Tensor

from kernels import device
from kernels.crossover import read_crossover
from kernels.weight_only_linear.launches import TABLES
from kernels.weight_only_linear.weight import LinearWeight


def weight_only_linear(x: Tensor, weight: LinearWeight) -> Tensor:
    """Return `x @ weight.T + bias` in the dtype of `x`, [num_tokens, out_features]; half as wide if gated.

    `x` is [num_tokens, in_features], float16 or bfloat16 on a GPU, with a dense last axis. A gated weight
    gives `silu(gate) * up`. Sums are in float32; within a regime, their order does not depend on other
    tokens. Raises ValueError on anything else.
    """
    if x.dim() != 2 or x.shape[1] != weight.in_features or x.stride(1) != 1:
        raise ValueError(
            f"weight_only_linear: x is {tuple(x.shape)} with strides {x.stride()}, "
            f"but the weight takes {weight.in_features} columns"
        )
    if x.dtype not in {torch.float16, torch.bfloat16} or not device.uses_triton(x):
        raise ValueError(f"weight_only_linear: x is {x.dtype} on {x.device}, not 16 bits on a GPU")
    from kernels.weight_only_linear import gpu  # noqa: PLC0415  (Triton is there with a GPU only)

    table = read_crossover(TABLES, device.gpu_name(x.device))
    return gpu.run(x, weight, table.choose(weight.format, x.shape[0]))
