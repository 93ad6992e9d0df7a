"""Multiplies tokens by a quantized weight on a CPU, unpacking it in the cache.

Weights are unpacked to float32, and sums are in float32 in one order, so a row has the same bits in any batch
and on any number of threads.
"""

from typing import Any, NamedTuple

from kernels.argmax import keep_largest
from kernels.compiled import Pointer, inlined, kernel
from kernels.simd import (
    bfloat16_at,
    float32_at,
    int8_at,
    int64_at,
    load,
    store,
    uint8_at,
    uint32_at,
)
from kernels.threads import fork, share
from kernels.tile import TILE_ROWS, Matrix, multiply_tile
from kernels.weight_only_linear.unpack import (
    MOST_DIRECT_ROWS,
    NUM_FACTORS,
    OFFSETS,
    TABLE,
    TILE,
    multiply_add,
    unpack,
)

# Columns that are multiplied before their sums are added to the totals; unpacked, they fit the first cache.
PANEL = 64
MOST_ROWS = 256  # tokens that share an unpacked panel; their totals fit the second cache
# The floats of a part's scratch, besides the totals: factors and a panel, or the sums of a few rows.
SCRATCH = NUM_FACTORS + PANEL * TILE


class Call(NamedTuple):
    """A product with its tensors by their addresses; the layout is that of `TiledWeight`."""

    num_rows: int
    x: int  # float32
    data: int
    eight_columns: int  # elements of the data that hold them for a tile: 64 or 256 words, or 512 bytes
    scales: int  # 0: none
    is_bfloat16_scales: bool
    zero_points: int  # 0: none
    table: int  # 0: none
    bias: int  # 0: none
    group_size: int
    num_groups: int
    in_features: int
    out_features: int
    num_tiles: int
    out: int
    is_bfloat16_out: bool
    scratch: int
    scratch_width: int  # of one part
    largest: int = 0  # [num_parts, num_rows] float32; 0: the product itself is written
    tokens: int = 0  # [num_parts, num_rows] int64


@inlined
def _set_table(factors: Pointer, call: Call) -> None:
    """Write the values of levels of 4 bits, which all groups share."""
    if call.table:
        for number in range(16):
            store(factors, TABLE + number, load(float32_at(call.table), number))


@inlined
def _set_factors(group: int, factors: Pointer, call: Call) -> None:
    """Write the scales of a group and what its zero points come to; groups are counted over all tiles."""
    start = group * TILE
    if call.is_bfloat16_scales:
        for row in range(TILE):
            store(factors, row, load(bfloat16_at(call.scales), start + row))
    else:
        for row in range(TILE):
            store(factors, row, load(float32_at(call.scales), start + row))
    if call.zero_points:
        for row in range(TILE):
            zero = load(int8_at(call.zero_points), start + row)
            store(factors, OFFSETS + row, -zero * load(factors, row))
    else:
        for row in range(TILE):
            store(factors, OFFSETS + row, 0)


@inlined
def _start_run(tile: int, column: int, end: int, scratch: Pointer, call: Call) -> tuple[int, int]:
    """Set the factors of a column's group; return the place of the column and how many of it share them."""
    group = column // call.group_size
    if call.scales:
        _set_factors(tile * call.num_groups + group, scratch, call)
    start = (tile * call.in_features + column) * call.eight_columns // 8
    return start, min(end, (group + 1) * call.group_size) - column


@inlined
def _add_panel(
    first: int, num_rows: int, tile: int, begin: int, source: Pointer, scratch: Pointer, call: Call
) -> None:
    """Add the products of some rows and the columns of a panel to the totals."""
    end = min(begin + PANEL, call.in_features)
    panel, totals = NUM_FACTORS, SCRATCH
    is_direct = num_rows <= MOST_DIRECT_ROWS
    if is_direct:
        for index in range(num_rows * TILE):
            store(scratch, panel + index, 0)
    column = begin
    while column < end:
        start, depth = _start_run(tile, column, end, scratch, call)
        if is_direct:
            x_start = first * call.in_features + column
            x, x_stride = float32_at(call.x), call.in_features
            multiply_add(num_rows, depth, source, start, scratch, x, x_start, x_stride, scratch, panel)
        else:
            unpack(depth, source, start, scratch, scratch, panel + (column - begin) * TILE)
        column += depth
    if is_direct:
        for index in range(num_rows * TILE):
            store(scratch, totals + index, load(scratch, totals + index) + load(scratch, panel + index))
    else:
        for row in range(0, num_rows, TILE_ROWS):
            multiply_tile(
                min(TILE_ROWS, num_rows - row),
                TILE,
                end - begin,
                Matrix(scratch, totals + row * TILE, TILE),
                Matrix(float32_at(call.x), (first + row) * call.in_features + begin, call.in_features),
                Matrix(scratch, panel, TILE),
            )


@inlined
def _write(first: int, num_rows: int, tile: int, part: int, totals: Pointer, call: Call) -> None:
    """Write the totals of some rows, with the bias, or keep the largest."""
    begin = tile * TILE
    width = min(TILE, call.out_features - begin)
    for row in range(num_rows):
        at, target = SCRATCH + row * TILE, (first + row) * call.out_features + begin
        if call.bias:
            for index in range(width):
                bias = load(float32_at(call.bias), begin + index)
                store(totals, at + index, load(totals, at + index) + bias)
        if call.largest:
            largest = float32_at(call.largest + part * call.num_rows * 4)
            tokens = int64_at(call.tokens + part * call.num_rows * 8)
            keep_largest(totals, at, width, begin, first + row, largest, tokens)
        elif call.is_bfloat16_out:
            for index in range(width):
                store(bfloat16_at(call.out), target + index, load(totals, at + index))
        else:
            for index in range(width):
                store(float32_at(call.out), target + index, load(totals, at + index))


@kernel
def _multiply(part: int, num_parts: int, source: Pointer, call: Call) -> None:
    # A pointer of its own for each part: what one writes is not read by another.
    scratch = float32_at(call.scratch + 4 * part * call.scratch_width)
    _set_table(scratch, call)
    begin_tile, end_tile = share(call.num_tiles, part, num_parts)
    for tile in range(begin_tile, end_tile):
        for first in range(0, call.num_rows, MOST_ROWS):
            num_rows = min(MOST_ROWS, call.num_rows - first)
            for index in range(num_rows * TILE):
                store(scratch, SCRATCH + index, 0)
            for begin in range(0, call.in_features, PANEL):
                _add_panel(first, num_rows, tile, begin, source, scratch, call)
            _write(first, num_rows, tile, part, scratch, call)


@kernel
def _dequantize(part: int, num_parts: int, source: Pointer, call: Call) -> None:
    scratch, out = float32_at(call.scratch + 4 * part * call.scratch_width), bfloat16_at(call.out)
    _set_table(scratch, call)
    begin_tile, end_tile = share(call.num_tiles, part, num_parts)
    for tile in range(begin_tile, end_tile):
        width = min(TILE, call.out_features - tile * TILE)
        column = 0
        while column < call.in_features:
            end = min(column + PANEL, call.in_features)
            start, depth = _start_run(tile, column, end, scratch, call)
            unpack(depth, source, start, scratch, scratch, NUM_FACTORS)
            for index in range(depth):
                at, target = NUM_FACTORS + index * TILE, (column + index) * call.out_features + tile * TILE
                for row in range(width):
                    store(out, target + row, load(scratch, at + row))
            column += depth


# Numba takes a plain tuple three microseconds faster than a named one.
Numbers = tuple[Any, ...]


@kernel
def multiply_four_bits(num_parts: int, numbers: Numbers) -> None:
    """Write the product of a Call, given as a plain tuple, with levels in 4 bits."""
    call = Call(*numbers)
    fork(_multiply, num_parts, (uint32_at(call.data), call))


@kernel
def multiply_int8(num_parts: int, numbers: Numbers) -> None:
    """Write the product of a Call, given as a plain tuple, with levels in int8."""
    call = Call(*numbers)
    fork(_multiply, num_parts, (int8_at(call.data), call))


@kernel
def multiply_fp8(num_parts: int, numbers: Numbers) -> None:
    """Write the product of a Call, given as a plain tuple, with levels in fp8."""
    call = Call(*numbers)
    fork(_multiply, num_parts, (uint8_at(call.data), call))


@kernel
def dequantize_four_bits(num_parts: int, numbers: Numbers) -> None:
    """Write a weight in 4 bits as bfloat16 [in_features, out_features] into a Call's `out`."""
    call = Call(*numbers)
    fork(_dequantize, num_parts, (uint32_at(call.data), call))


@kernel
def dequantize_int8(num_parts: int, numbers: Numbers) -> None:
    """Write a weight in int8 as bfloat16 [in_features, out_features] into a Call's `out`."""
    call = Call(*numbers)
    fork(_dequantize, num_parts, (int8_at(call.data), call))


@kernel
def dequantize_fp8(num_parts: int, numbers: Numbers) -> None:
    """Write a weight in fp8 as bfloat16 [in_features, out_features] into a Call's `out`."""
    call = Call(*numbers)
    fork(_dequantize, num_parts, (uint8_at(call.data), call))
