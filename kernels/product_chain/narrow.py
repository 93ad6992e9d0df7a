"""Unpacks panels of weights that a checkpoint has in 4 or 8 bits, where tiles multiply them as any others.

A panel is unpacked into a thread's own memory before rows are multiplied by it, so the weight stays narrow in
memory, and is read from there as it is. For few rows it is unpacked and multiplied in registers. Panels are
as wide as the tiles of `weight_only_linear`, which needs AVX512.
"""

from typing import NamedTuple

from kernels.compiled import Pointer, inlined, kernel
from kernels.product_chain.tile import PANEL, WORD
from kernels.simd import bfloat16_at, float32_at, int8_at, int64_at, load, store, uint8_at, uint32_at
from kernels.weight_only_linear.cpu import Call, set_table, start_run
from kernels.weight_only_linear.unpack import (
    MOST_DIRECT_ROWS,
    MOST_ROWS_OF_PAIRS,
    NUM_FACTORS,
    TILE,
    multiply_add,
    multiply_add_pairs,
    unpack,
    unpack_pairs,
)

# Where a panel or products begin in a thread's memory, in bytes: behind the factors of a group.
START = NUM_FACTORS * 4
# Levels of 4 bits, as int8 and as fp8.
FOUR_BITS, INT8, FP8 = range(3)


class NarrowNumbers(NamedTuple):
    """A narrow weight with its tensors by their addresses; all but the kind is as in `Call`."""

    kind: int
    data: int
    eight_columns: int
    scales: int
    is_bfloat16_scales: bool
    zero_points: int
    table: int
    group_size: int
    num_groups: int
    in_features: int


@inlined
def _call(numbers: Pointer) -> Call:
    """Return the Call of NarrowNumbers, without tokens."""
    return Call(
        num_rows=0,
        x=0,
        data=numbers[1],
        eight_columns=numbers[2],
        scales=numbers[3],
        is_bfloat16_scales=numbers[4] != 0,
        zero_points=numbers[5],
        table=numbers[6],
        bias=0,
        group_size=numbers[7],
        num_groups=numbers[8],
        in_features=numbers[9],
        out_features=0,
        num_tiles=0,
        out=0,
        is_bfloat16_out=False,
        scratch=0,
        scratch_width=0,
        largest=0,
        tokens=0,
    )


@inlined
def _unpack(source: Pointer, panel: int, is_pairs: bool, memory: int, call: Call) -> None:
    """Write a panel as tiles read it, group by group."""
    factors, unpacked = float32_at(memory), memory + START
    set_table(factors, call)
    column = 0
    while column < call.in_features:
        start, depth = start_run(panel, column, call.in_features, factors, call)
        if is_pairs:
            even = depth // 2 * 2
            unpack_pairs(even, source, start, factors, bfloat16_at(unpacked), column * TILE)
            if even < depth:
                # The last column, whose neighbour is zero; only rows with one scale have an odd number.
                last = unpacked + (column + even) * TILE * 2
                unpack(1, source, start + even * TILE, factors, float32_at(last), 0)
                for row in range(TILE):
                    value = load(float32_at(last), row)  # where its pair will be
                    store(bfloat16_at(last), 2 * row, value)
                    store(bfloat16_at(last), 2 * row + 1, 0)
        else:
            unpack(depth, source, start, factors, float32_at(unpacked), column * TILE)
        column += depth


@kernel
def unpack_panel(address: int, panel: int, num_words: int, is_pairs: bool, memory: int) -> int:
    """Write a panel of NarrowNumbers into a thread's memory; return where the weight's first panel would be.

    All are given by their addresses. Pairs are bfloat16 [num_words, PANEL, 2], others float32.
    """
    numbers = int64_at(address)
    kind, call = numbers[0], _call(numbers)
    if kind == FOUR_BITS:
        _unpack(uint32_at(call.data), panel, is_pairs, memory, call)
    elif kind == INT8:
        _unpack(int8_at(call.data), panel, is_pairs, memory, call)
    else:
        _unpack(uint8_at(call.data), panel, is_pairs, memory, call)
    return memory + START - panel * num_words * PANEL * WORD


@inlined
def are_few(num_rows: int, in_features: int, is_pairs: bool) -> bool:
    """Return whether levels are unpacked in registers for so many rows, and no panel is written."""
    if is_pairs:
        return num_rows <= MOST_ROWS_OF_PAIRS and in_features % 2 == 0
    return num_rows <= MOST_DIRECT_ROWS


@inlined
def _multiply(
    num_rows: int, source: Pointer, panel: int, is_pairs: bool, x: int, depth: int, memory: int, call: Call
) -> None:
    """Write the products of few rows and a panel, group by group."""
    factors, sums = float32_at(memory), float32_at(memory + START)
    set_table(factors, call)
    for index in range(num_rows * PANEL):
        store(sums, index, 0)
    column = 0
    while column < call.in_features:
        start, length = start_run(panel, column, call.in_features, factors, call)
        if is_pairs:
            pairs, stride = bfloat16_at(x), depth // 2
            multiply_add_pairs(num_rows, length, source, start, factors, pairs, column, stride, sums, 0)
        else:
            floats, stride = float32_at(x), depth // 4
            multiply_add(num_rows, length, source, start, factors, floats, column, stride, sums, 0)
        column += length


@kernel
def multiply_few(
    address: int, panel: int, num_rows: int, is_pairs: bool, x: int, depth: int, memory: int
) -> int:
    """Write the products of few rows and a panel, float32 [num_rows, PANEL]; return where they begin.

    `x` [num_rows, depth] bytes are factors as `encode_row` writes them; all are given by their addresses.
    Products have no bias, and else the bits of those by the unpacked panel.
    """
    numbers = int64_at(address)
    kind, call = numbers[0], _call(numbers)
    if kind == FOUR_BITS:
        _multiply(num_rows, uint32_at(call.data), panel, is_pairs, x, depth, memory, call)
    elif kind == INT8:
        _multiply(num_rows, int8_at(call.data), panel, is_pairs, x, depth, memory, call)
    else:
        _multiply(num_rows, uint8_at(call.data), panel, is_pairs, x, depth, memory, call)
    return memory + START
