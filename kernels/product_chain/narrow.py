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
    """A product: the weight, the panel and the rows, and where it goes. All but `out` are numbers."""

    weight: int  # the address of NarrowNumbers
    panel: int
    following: int  # the panel that is prefetched; -1: none
    num_rows: int
    x: int  # the address of the first row's factors, bfloat16 or float32
    depth: int  # bytes from one row of `x` to the next
    bias: int  # [num_panels * TILE] float32, by its address
    memory: int  # the address of this thread's: the numbers of a group, then the panel, once unpacked
    out: Pointer  # float32
    start: int  # of the first row
    stride: int  # elements from one row of `out` to the next


@inlined
def multiply_narrow(place: NarrowPlace) -> None:
    """Write the products of rows and a panel, with their bias."""
    call_at(int64_at(place.weight)[0], place)


@inlined
def _weight(address: int) -> NarrowNumbers:
    numbers = int64_at(address)
    return NarrowNumbers(
        product=numbers[0],
        data=numbers[1],
        table=numbers[2],
        scales=numbers[3],
        is_bfloat16_scales=numbers[4] != 0,
        zero_points=numbers[5],
        group_size=numbers[6],
        num_groups=numbers[7],
        in_features=numbers[8],
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
        zero = int8_at(weight.zero_points)[at + channel] if weight.zero_points else 0
        zeros[ZERO_POINTS + channel] = zero
    return min(weight.in_features, (group + 1) * weight.group_size) - column


@inlined
def _place(address: int) -> NarrowPlace:
    numbers = int64_at(address)
    return NarrowPlace(
        weight=numbers[0],
        panel=numbers[1],
        following=numbers[2],
        num_rows=numbers[3],
        x=numbers[4],
        depth=numbers[5],
        bias=numbers[6],
        memory=numbers[7],
        out=float32_at(numbers[8]),
        start=numbers[9],
        stride=numbers[10],
    )


@inlined
def _multiply(levels: Pointer, pair_bytes: int, rows: Pointer, itemsize: int, keeps: bool, call: int) -> None:
    """Write the products of the NarrowPlace at an address; a panel has so many bytes for a pair of columns.

    `levels` and `rows` tell the types of pointers only. With `keeps`, the first tile keeps what it unpacks.
    """
    place = _place(call)
    weight = _weight(place.weight)
    numbers, table, bias = float32_at(place.memory), uint8_at(weight.table), float32_at(place.bias)
    num_tiles, depth = tiles_of(place.num_rows), place.depth // itemsize
    is_kept = keeps and num_tiles > 1
    ahead, step = weight.data, 0
    if num_tiles > 1 and place.following >= 0:
        ahead += place.following * weight.in_features // 2 * pair_bytes
        step = (pair_bytes + num_tiles - 1) // num_tiles
    for tile in range(num_tiles):
        first, end = share(place.num_rows, tile, num_tiles)
        count, to = end - first, place.start + first * place.stride
        for row in range(count):
            copy(TILE, bias, place.panel * TILE, place.out, to + row * place.stride)
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
                    place.out,
                    to,
                    place.stride,
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
                    place.out,
                    to,
                    place.stride,
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
                    place.out,
                    to,
                    place.stride,
                )
            ahead += length // 2 * step
            column += length


def _pairs_of_four_bits(call: int) -> None:
    # Looking up a level of 4 bits again takes no longer than reading what was kept.
    _multiply(uint32_at(0), TILE, bfloat16_at(0), 2, False, call)


def _pairs_less_zeros(call: int) -> None:
    _multiply(int32_at(0), TILE, bfloat16_at(0), 2, True, call)


def _pairs_of_int8(call: int) -> None:
    _multiply(int8_at(0), 2 * TILE, bfloat16_at(0), 2, True, call)


def _pairs_of_fp8(call: int) -> None:
    _multiply(uint8_at(0), 2 * TILE, bfloat16_at(0), 2, True, call)


def _floats_of_four_bits(call: int) -> None:
    _multiply(uint32_at(0), TILE, float32_at(0), 4, False, call)


def _floats_less_zeros(call: int) -> None:
    _multiply(int32_at(0), TILE, float32_at(0), 4, True, call)


def _floats_of_int8(call: int) -> None:
    _multiply(int8_at(0), 2 * TILE, float32_at(0), 4, True, call)


def _floats_of_fp8(call: int) -> None:
    _multiply(uint8_at(0), 2 * TILE, float32_at(0), 4, True, call)


# By the kind of levels, for rows in bfloat16 and in float32.
_PRODUCTS = {
    FOUR_BITS: (_pairs_of_four_bits, _floats_of_four_bits),
    FOUR_BITS_LESS_ZEROS: (_pairs_less_zeros, _floats_less_zeros),
    INT8: (_pairs_of_int8, _floats_of_int8),
    FP8: (_pairs_of_fp8, _floats_of_fp8),
}


@cache
def product_of(kind: int, *, is_pairs: bool) -> int:
    """Return the address of what multiplies levels of a kind by rows in bfloat16, or in float32."""
    pairs, floats = _PRODUCTS[kind]
    return entry(pairs if is_pairs else floats)
