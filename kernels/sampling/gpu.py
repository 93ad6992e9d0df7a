"""Launches sampling on a GPU, one program per row."""

import torch
from torch import Tensor

from kernels.sampling import kernel

BLOCK = 2048  # tokens at once
NUM_WARPS = 8


def sample(
    logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, uniform: Tensor
) -> Tensor:
    """Return the token of each row as `kernels.sampling.sample` does."""
    num_rows, vocab_size = logits.shape
    out = torch.empty(num_rows, dtype=torch.int64, device=logits.device)
    if num_rows:
        kernel.sample[(num_rows,)](
            logits,
            temperature,
            top_k,
            top_p,
            min_p,
            uniform,
            out,
            logits.stride(0),
            vocab_size,
            BLOCK=BLOCK,
            num_warps=NUM_WARPS,
        )
    return out
