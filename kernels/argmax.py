"""Keeps the largest logit of each row, and its token, as a head computes them: none is written to memory."""

import numpy as np
import torch
from torch import Tensor

from kernels.compiled import Pointer, inlined
from kernels.simd import load, maximum, store


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


def merged(largest: Tensor, tokens: Tensor) -> Tensor:
    """Return each row's token, int64 [num_rows]; -1 where the largest logit is NaN or infinite.

    `largest` float32 and `tokens` int64 are [num_parts, num_rows]: what each thread found.
    """
    if len(largest) == 1:
        return tokens[0].where(largest[0].isfinite(), -1)
    of_all = largest.amax(dim=0)
    chosen = tokens.masked_fill(largest != of_all, torch.iinfo(torch.int64).max).amin(dim=0)
    return chosen.where(of_all.isfinite(), -1)
