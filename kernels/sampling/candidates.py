"""Finds the few largest logits of each row, and their probabilities, on a CPU."""

import numpy as np

from kernels.compiled import Pointer, inlined, kernel
from kernels.sampling.cpu import CHUNK
from kernels.simd import exp, float32_at, int64_at, load, maximum, store
from kernels.threads import fork, share


@inlined
def _largest(values: Pointer, start: int, count: int) -> np.float32:
    found = np.float32(-np.inf)
    for index in range(count):
        found = maximum(found, load(values, start + index))
    return found


@inlined
def _place_of(values: Pointer, start: int, value: np.float32) -> int:
    """Return the first place of a value, which is there."""
    place = 0
    while load(values, start + place) != value:
        place += 1
    return place


@kernel
def _find(
    part: int,
    num_parts: int,
    num_rows: int,
    vocab_size: int,
    row_stride: int,
    num_candidates: int,
    logits: Pointer,
    all_maxima: Pointer,
    tokens: Pointer,
    shares: Pointer,
) -> None:
    num_chunks = -(-vocab_size // CHUNK)
    maxima = part * num_chunks
    begin, end = share(num_rows, part, num_parts)
    for row in range(begin, end):
        start, out = row * row_stride, row * num_candidates
        for chunk in range(num_chunks):
            first = chunk * CHUNK
            found = _largest(logits, start + first, min(CHUNK, vocab_size - first))
            store(all_maxima, maxima + chunk, found)
        largest = _largest(all_maxima, maxima, num_chunks)
        total = np.float32(0)
        for token in range(vocab_size):
            total += exp(load(logits, start + token) - largest)
        is_sound = np.isfinite(largest)
        for rank in range(num_candidates):
            found = _largest(all_maxima, maxima, num_chunks)
            is_sound = is_sound and np.isfinite(found)
            if not is_sound:
                tokens[out + rank] = -1
                store(shares, out + rank, np.float32(0))
                continue
            chunk = _place_of(all_maxima, maxima, found)
            first = chunk * CHUNK
            token = first + _place_of(logits, start + first, found)
            tokens[out + rank] = token
            store(shares, out + rank, exp(found - largest) / total)
            store(logits, start + token, np.float32(-np.inf))
            found = _largest(logits, start + first, min(CHUNK, vocab_size - first))
            store(all_maxima, maxima + chunk, found)


@kernel
def find(
    num_parts: int,
    num_rows: int,
    vocab_size: int,
    row_stride: int,
    num_candidates: int,
    logits: int,
    maxima: int,
    tokens: int,
    shares: int,
) -> None:
    """Write the tokens and shares of each row; `maxima` has room for the chunks of a row, for each part.

    The logits that were found become -inf. Tensors are given by their addresses.
    """
    rows = (
        num_rows,
        vocab_size,
        row_stride,
        num_candidates,
        float32_at(logits),
        float32_at(maxima),
        int64_at(tokens),
        float32_at(shares),
    )
    fork(_find, num_parts, rows)
