"""Checks the arguments of products by expert; GPU only, as on a CPU the host loops over the experts."""

import torch
from torch import Tensor

from kernels import device
from kernels.expert_linear.weight import ExpertWeights


def expert_linear(x: Tensor, weight: ExpertWeights, expert_ends: Tensor) -> Tensor:
    """Return each token times the weight of its expert, in the dtype of `x`, [num_tokens, rows_per_expert].

    `x` [num_tokens, in_features] has the tokens of expert 0 first, then those of expert 1 and so on;
    `expert_ends` [num_experts] int64 holds the end of each expert's tokens. A gated weight gives
    `silu(gate) * up`, half as wide. The host does not wait for the device. `x` is float16 or bfloat16; with
    weights that are not quantized, it has their dtype. Rows past the last expert's tokens are not written.
    Raises ValueError on anything else.
    """
    stacked = weight.stacked
    if x.dim() != 2 or x.shape[1] != stacked.in_features or x.stride(1) != 1:
        raise ValueError(
            f"expert_linear: x is {tuple(x.shape)} with strides {x.stride()}, "
            f"but the weight takes {stacked.in_features} columns"
        )
    if expert_ends.shape != (weight.num_experts,) or expert_ends.dtype is not torch.int64:
        raise ValueError(
            f"expert_linear: expert_ends is {tuple(expert_ends.shape)} {expert_ends.dtype}, "
            f"not {(weight.num_experts,)} int64"
        )
    takes = {stacked.data.dtype} if stacked.scales is None else {torch.float16, torch.bfloat16}
    if x.dtype not in takes or not device.uses_triton(x):
        raise ValueError(f"expert_linear: x is {x.dtype} on {x.device}, not {takes} on a GPU")
    from kernels.expert_linear import gpu  # noqa: PLC0415  (Triton is there with a GPU only)

    return gpu.run(x, weight, expert_ends)
