"""Sampling: checks arguments. On a GPU only; a CPU's sampler is the engine's own."""

import torch
from torch import Tensor


def sample(
    logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, uniform: Tensor
) -> Tensor:
    """Return the chosen token of each row, [num_rows] int64, still on the device.

    `logits` is [num_rows, vocab_size] with a dense last axis, everything else [num_rows] float64: a
    `temperature` of 0 takes the likeliest token; `top_k` counts tokens, as many as there are when off; of
    what it leaves, `top_p` keeps the likeliest up to that share, at least one; of what that leaves, `min_p`
    keeps what is at least so likely as that share of the likeliest. The token is where the cumulative
    distribution of what is kept, in the order of the vocabulary, passes `uniform` in [0, 1). A row's token
    does not depend on other rows. Raises ValueError on shapes that do not fit.
    """
    options = (temperature, top_k, top_p, min_p, uniform)
    if (
        logits.dim() != 2
        or logits.stride(1) != 1
        or any(x.shape != logits.shape[:1] or x.dtype is not torch.float64 for x in options)
        or any(x.stride(0) != 1 for x in options)
    ):
        raise ValueError(
            f"sample: logits {tuple(logits.shape)} with strides {logits.stride()}, options "
            f"{[tuple(x.shape) for x in options]} of {[x.dtype for x in options]}"
        )
    from kernels.sampling import gpu  # noqa: PLC0415  (Triton is there with a GPU only)

    return gpu.sample(logits, *options)
