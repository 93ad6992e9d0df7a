"""Checks the arguments of sampling; GPU only, as the engine itself samples on a CPU."""

import torch
from torch import Tensor


def sample(
    logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, uniform: Tensor
) -> Tensor:
    """Return the chosen token of each row, [num_rows] int64, still on the device.

    `logits` is [num_rows, vocab_size] with a dense last axis; everything else is [num_rows] float64. A
    `temperature` of 0 takes the most likely token. `top_k` keeps that many tokens; at vocab_size or more, it
    is off. Of those, `top_p` keeps the most likely ones up to that share of probability, at least one. Of
    those, `min_p` keeps tokens with at least that share of the most likely token's probability. The chosen
    token is where the cumulative distribution of the kept ones, in vocabulary order, exceeds `uniform` in
    [0, 1). A row's token does not depend on other rows. Raises ValueError on shapes that do not fit.
    """
    options = (temperature, top_k, top_p, min_p, uniform)
    if (
        logits.dim() != 2
        or logits.stride(1) != 1
        or any(x.shape != logits.shape[:1] or x.dtype is not torch.float64 for x in options)
        or any(x.stride(0) != 1 for x in options)
    ):
        raise ValueError(
            f"sample: arguments do not fit: logits {tuple(logits.shape)} with strides {logits.stride()}, "
            f"options {[tuple(x.shape) for x in options]} of {[x.dtype for x in options]}"
        )
    from kernels.sampling import gpu  # noqa: PLC0415  (Triton is there with a GPU only)

    return gpu.sample(logits, *options)
