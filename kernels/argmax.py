"""Keeps the largest logit of each row, and its token, as a head computes them: none is written to memory."""

import numpy as np
import torch
from torch import Tensor

from kernels.compiled import Pointer, inlined, kernel
from kernels.simd import float32_at, int64_at, load, maximum, store


@inlined
def keep_largest(
    logits: Pointer, start: int, count: int, first_token: int, row: int, largest: Pointer, tokens: Pointer
) -> None:
    """Take `count` logits of a row, in the order of tokens, into its largest one and that one's token.

    Of equal ones the first stays. NaN is larger than every number, and has no token.
    """
    found = np.float32(-np.inf)
    for index in range(count):
        found = maximum(found, load(logits, start + index))
    before = load(largest, row)
    if found > before:
        index = 0
        while load(logits, start + index) < found:
            index += 1
        tokens[row] = first_token + index
    store(largest, row, maximum(before, found))


@kernel
def _merge(num_parts: int, num_rows: int, largest: int, tokens: int, chosen: int) -> None:
    """Write what `merged` returns; all tensors are given by their addresses."""
    logits, found = float32_at(largest), int64_at(tokens)
    for row in range(num_rows):
        best, token, is_sound = load(logits, row), found[row], True
        for at in range(row, num_parts * num_rows, num_rows):
            logit = load(logits, at)
            is_sound &= logit < np.inf  # nor is NaN
            if logit > best or (logit == best and found[at] < token):
                best, token = logit, found[at]
        int64_at(chosen)[row] = token if is_sound and best > -np.inf else -1


def merged(largest: Tensor, tokens: Tensor) -> Tensor:
    """Return each row's token, int64 [num_rows]; -1 where the largest logit is NaN or infinite.

    `largest` float32 and `tokens` int64 are [num_parts, num_rows], dense: what each thread found.
    """
    num_parts, num_rows = largest.shape
    chosen = torch.empty(num_rows, dtype=torch.int64)
    _merge(num_parts, num_rows, largest.data_ptr(), tokens.data_ptr(), chosen.data_ptr())
    return chosen
