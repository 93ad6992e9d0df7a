"""Multiplies rows by panels of weights that a checkpoint has in 4 or 8 bits; they stay as narrow in memory.

Panels are as wide as tiles of levels, which need AVX512. What multiplies a format is compiled when a weight
has it, and called by its address.
"""

from functools import cache
from typing import NamedTuple

from kernels.compiled import Pointer, entry, inlined
from kernels.product_chain.levels import GROUP_NUMBERS, TILE, ZERO_POINTS
from kernels.product_chain.narrow_tile import multiply_and_keep, multiply_levels
from kernels.product_chain.tile import tiles_of
from kernels.simd import (
    bfloat16_at,
    call_at,
    copy,
    float32_at,
    int8_at,
    int32_at,
    int64_at,
    pointer_like,
    uint8_at,
    uint32_at,
)
from kernels.threads import share

# Where unpacked levels begin in a thread's memory, in bytes: behind the numbers of a group.
START = GROUP_NUMBERS * 4
# Levels of 4 bits, those that have zero points, int8 and e4m3.
FOUR_BITS, FOUR_BITS_LESS_ZEROS, INT8, FP8 = range(4)
_LEVELS_AT = (uint32_at, int32_at, int8_at, uint8_at)


class NarrowNumbers(NamedTuple):
    """A narrow weight with its tensors by their addresses; their layout is that of `NarrowPanels`."""

    product: int  # the address of what multiplies it, as `product_of` returns it
    data: int
    table: int  # as `unpacking` takes it
    scales: int
    is_bfloat16_scales: bool
    zero_points: int  # 0: all are zero
    group_size: int
    num_groups: int
    in_features: int


class NarrowPlace(NamedTuple):
    """The rows and the panel of a product; `x`, `bias` and memory are addresses."""

    panel: int
    following: int  # the panel that is prefetched; -1: none
    num_rows: int
    x: int  # the factors of the first row, bfloat16 or float32
    depth: int  # bytes from one row of `x` to the next
    bias: int  # [num_panels * TILE] float32
    memory: int  # of this thread: the numbers of a group, then the panel, once unpacked


@inlined
def multiply_narrow(address: int, place: NarrowPlace, out: Pointer, start: int, stride: int) -> None:
    """Write the products of rows and a panel of the NarrowNumbers at an address, with their bias.

    They go to `out`, float32, from `start` on; a row of it has `stride` elements.
    """
    panel, following, num_rows, x, depth, bias, memory = place
    numbers = (address, panel, following, num_rows, x, depth, bias, memory, out, start, stride)
    call_at(int64_at(address)[0], numbers)


@cache
def product_of(kind: int, *, is_pairs: bool) -> int:
    """Return the address of what multiplies levels of a kind by rows in bfloat16, or in float32."""
    levels_at, rows_at = _LEVELS_AT[kind], bfloat16_at if is_pairs else float32_at
    pair_bytes = TILE if kind in {FOUR_BITS, FOUR_BITS_LESS_ZEROS} else 2 * TILE
    itemsize = 2 if is_pairs else 4
    # Looking up a level of 4 bits again is faster than reading what was kept.
    keeps = kind != FOUR_BITS

    def multiply(
        address: int,
        panel: int,
        following: int,
        num_rows: int,
        x: int,
        depth: int,
        bias: int,
        memory: int,
        out: int,
        start: int,
        stride: int,
    ) -> None:
        weight = _weight(address)
        place = NarrowPlace(panel, following, num_rows, x, depth // itemsize, bias, memory)
        levels, rows = levels_at(weight.data), rows_at(x)
        _multiply(levels, pair_bytes, rows, itemsize, keeps, float32_at(out), start, stride, place, weight)

    return entry(multiply, 11)


@inlined
def _weight(address: int) -> NarrowNumbers:
    numbers = int64_at(address)
    return NarrowNumbers(
        numbers[0],
        numbers[1],
        numbers[2],
        numbers[3],
        numbers[4] != 0,
        numbers[5],
        numbers[6],
        numbers[7],
        numbers[8],
    )


@inlined
def _set_group(panel: int, column: int, memory: int, weight: NarrowNumbers) -> int:
    """Write the numbers of a column's group; return how many columns are left of it from there on."""
    group = column // weight.group_size
    at = (panel * weight.num_groups + group) * TILE
    if weight.is_bfloat16_scales:
        copy(TILE, bfloat16_at(weight.scales), at, float32_at(memory), 0)
    else:
        copy(TILE, float32_at(weight.scales), at, float32_at(memory), 0)
    zeros = int32_at(memory)
    for channel in range(TILE):
        zeros[ZERO_POINTS + channel] = int8_at(weight.zero_points)[at + channel] if weight.zero_points else 0
    return min(weight.in_features, (group + 1) * weight.group_size) - column


@inlined
def _multiply(
    levels: Pointer,
    pair_bytes: int,
    rows: Pointer,
    itemsize: int,
    keeps: bool,
    out: Pointer,
    start: int,
    stride: int,
    place: NarrowPlace,
    weight: NarrowNumbers,
) -> None:
    """Write the products; a panel has so many bytes for a pair of columns. The depth is in elements."""
    numbers, table, bias = float32_at(place.memory), uint8_at(weight.table), float32_at(place.bias)
    num_tiles, depth = tiles_of(place.num_rows), place.depth
    is_kept = keeps and num_tiles > 1
    ahead, step = weight.data, 0
    if num_tiles > 1 and place.following >= 0:
        ahead += place.following * weight.in_features // 2 * pair_bytes
        step = (pair_bytes + num_tiles - 1) // num_tiles
    for tile in range(num_tiles):
        first, end = share(place.num_rows, tile, num_tiles)
        count, to = end - first, start + first * stride
        for row in range(count):
            copy(TILE, bias, place.panel * TILE, out, to + row * stride)
        column = 0
        while column < weight.in_features:
            length = _set_group(place.panel, column, place.memory, weight)
            x = pointer_like(rows, place.x + (first * depth + column) * itemsize)
            at = weight.data + (place.panel * weight.in_features + column) // 2 * pair_bytes
            unpacked = pointer_like(rows, place.memory + START + column * TILE * itemsize)
            if is_kept and tile > 0:
                multiply_levels(
                    count,
                    length,
                    ahead,
                    step,
                    x,
                    depth,
                    unpacked,
                    table,
                    numbers,
                    out,
                    to,
                    stride,
                )
            elif is_kept:
                multiply_and_keep(
                    count,
                    length,
                    ahead,
                    step,
                    x,
                    depth,
                    pointer_like(levels, at),
                    table,
                    numbers,
                    out,
                    to,
                    stride,
                    unpacked,
                )
            else:
                multiply_levels(
                    count,
                    length,
                    ahead,
                    step,
                    x,
                    depth,
                    pointer_like(levels, at),
                    table,
                    numbers,
                    out,
                    to,
                    stride,
                )
            ahead += length // 2 * step
            column += length
