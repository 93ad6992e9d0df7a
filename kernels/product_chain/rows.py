"""Reads rows of a weight in panels: an embedding that shares the weight of a head."""

import numpy as np

from kernels.compiled import kernel
from kernels.product_chain.factors import BYTES, FLOATS
from kernels.product_chain.tile import PANEL, WORD
from kernels.simd import bfloat16_at, float32_at, int8_at, int64_at, load, store


@kernel
def read_rows(
    num_rows: int,
    rows: int,
    panels: int,
    scales: int,
    format_: int,
    largest: float,
    num_words: int,
    in_features: int,
    out_features: int,
    out: int,
) -> bool:
    """Write rows of a weight [out_features, in_features] as float32; return whether all of them are there.

    Tensors are given by their addresses: `rows` int64, `scales` of BYTES only.
    """
    found = float32_at(out)
    for place in range(num_rows):
        row = int64_at(rows)[place]
        if row < 0 or row >= out_features:
            return False
        first, channel = row // PANEL * num_words, row % PANEL
        if format_ == BYTES:
            step = load(float32_at(scales), row) * np.float32(largest)
            for word in range(num_words):
                at = ((first + word) * PANEL + channel) * WORD
                for index in range(min(WORD, in_features - word * WORD)):
                    value = load(int8_at(panels), at + index)
                    store(found, place * in_features + word * WORD + index, value * step)
        elif format_ == FLOATS:
            for word in range(num_words):
                at = (first + word) * PANEL + channel
                store(found, place * in_features + word, load(float32_at(panels), at))
        else:
            for word in range(num_words):
                at = ((first + word) * PANEL + channel) * 2
                for index in range(min(2, in_features - word * 2)):
                    value = load(bfloat16_at(panels), at + index)
                    store(found, place * in_features + word * 2 + index, value)
    return True
