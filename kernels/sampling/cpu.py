"""Masks what grammars forbid, and draws tokens from whole distributions, on a CPU.

A draw is two passes over a row, which the first-level cache mostly holds, and a look at one chunk of it.
"""

import numpy as np

from kernels.compiled import Pointer, kernel
from kernels.simd import (
    exp,
    float32_at,
    float64_at,
    int64_at,
    load,
    maximum,
    store,
    uint32_at,
)
from kernels.threads import fork, share

CHUNK = 128  # tokens between two running sums
LEAST_POWER = np.float32(-87.0)  # of e; where `exp` ends
WORD = 32  # tokens, of which a mask has a bit each


@kernel
def _draw(
    part: int,
    num_parts: int,
    num_rows: int,
    vocab_size: int,
    row_stride: int,
    logits: Pointer,
    temperatures: Pointer,
    min_ps: Pointer,
    uniforms: Pointer,
    all_weights: Pointer,
    all_sums: Pointer,
    chosen: Pointer,
) -> None:
    num_chunks = -(-vocab_size // CHUNK)
    weights, sums = part * vocab_size, part * num_chunks
    begin, end = share(num_rows, part, num_parts)
    for row in range(begin, end):
        start = row * row_stride
        largest = np.float32(-np.inf)
        for token in range(vocab_size):
            largest = maximum(largest, load(logits, start + token))
        scale, min_p = np.float32(1) / load(temperatures, row), load(min_ps, row)
        running = 0.0
        for chunk in range(num_chunks):
            total = 0.0
            for token in range(chunk * CHUNK, min((chunk + 1) * CHUNK, vocab_size)):
                power = (load(logits, start + token) - largest) * scale
                weight = exp(power)
                if not (power > LEAST_POWER and weight >= min_p):
                    weight = np.float32(0)
                store(all_weights, weights + token, weight)
                total += np.float64(weight)
            running += total
            all_sums[sums + chunk] = running
        target = uniforms[row] * running
        chunk = 0
        while chunk < num_chunks - 1 and all_sums[sums + chunk] <= target:
            chunk += 1
        passed = all_sums[sums + chunk - 1] if chunk else 0.0
        found = 0
        # Rounded otherwise than the chunk's own sum, this one may end below the target.
        for token in range(chunk * CHUNK, min((chunk + 1) * CHUNK, vocab_size)):
            weight = load(all_weights, weights + token)
            if weight > 0:
                found = token
                passed += np.float64(weight)
                if passed > target:
                    break
        chosen[row] = found


@kernel
def draw(
    num_parts: int,
    num_rows: int,
    vocab_size: int,
    row_stride: int,
    logits: int,
    temperatures: int,
    min_ps: int,
    uniforms: int,
    weights: int,
    sums: int,
    chosen: int,
) -> None:
    """Write the token of each row. `weights` and `sums` have room for a row, and its chunks, for each part.

    Tensors are given by their addresses.
    """
    rows = (
        num_rows,
        vocab_size,
        row_stride,
        float32_at(logits),
        float32_at(temperatures),
        float32_at(min_ps),
        float64_at(uniforms),
        float32_at(weights),
        float64_at(sums),
        int64_at(chosen),
    )
    fork(_draw, num_parts, rows)


@kernel
def _keep_allowed(
    part: int,
    num_parts: int,
    num_rows: int,
    vocab_size: int,
    num_words: int,
    row_stride: int,
    rows: Pointer,
    allowed: Pointer,
    logits: Pointer,
) -> None:
    begin, end = share(num_rows, part, num_parts)
    for place in range(begin, end):
        start = rows[place] * row_stride
        for word in range(-(-vocab_size // WORD)):
            bits = np.int64(allowed[place * num_words + word])
            first = word * WORD
            for bit in range(min(WORD, vocab_size - first)):
                value = load(logits, start + first + bit)
                is_allowed = (bits >> bit) & 1
                store(logits, start + first + bit, value if is_allowed else np.float32(-np.inf))


@kernel
def keep_allowed(
    num_parts: int,
    num_rows: int,
    vocab_size: int,
    num_words: int,
    row_stride: int,
    rows: int,
    allowed: int,
    logits: int,
) -> None:
    """Set the logits of tokens without a bit to -inf, in the given rows.

    Tensors are given by their addresses.
    """
    masks = (
        num_rows,
        vocab_size,
        num_words,
        row_stride,
        int64_at(rows),
        uint32_at(allowed),
        float32_at(logits),
    )
    fork(_keep_allowed, num_parts, masks)
