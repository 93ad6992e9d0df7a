"""Multiplies rows by panels, and keeps the largest product of each row."""

from typing import Any, NamedTuple

from kernels.argmax import keep_largest
from kernels.compiled import inlined, kernel
from kernels.product_chain.factors import BYTES, FLOATS, IS_WIDENED, PAIRS
from kernels.product_chain.narrow import NarrowPlace, multiply_narrow
from kernels.product_chain.tile import (
    PANEL,
    TILE_ROWS,
    fetched,
    multiply_bytes,
    multiply_floats,
    multiply_pairs,
    tiles_of,
)
from kernels.simd import bfloat16_at, float32_at, int8_at, int32_at, int64_at, uint8_at
from kernels.threads import fork, share, take_next


class ArgmaxCall(NamedTuple):
    """All that the parts of one call share, with tensors by their addresses."""

    num_rows: int
    levels: int  # [num_rows, depth] bytes: the factors of rows
    depth: int
    maxima: int  # [num_rows] float32, of BYTES only
    format: int
    panels: int
    offsets: int
    scales: int  # of BYTES only, as offsets are
    narrow: int  # NarrowNumbers, which rows in the format are multiplied by; 0: the panels
    bias: int
    num_words: int
    num_panels: int
    out_features: int
    counter: int  # [1] zero: the next panel
    products: int  # [num_parts, TILE_ROWS, PANEL] float32
    largest: int  # [num_parts, num_rows] float32
    tokens: int  # [num_parts, num_rows] int64
    own: int  # [num_parts, own_bytes] bytes, for a narrow weight: products of all rows, and what they need
    own_bytes: int


@inlined
def _multiply(
    column: int, first: int, num_rows: int, ahead: int, step: int, at: int, call: ArgmaxCall
) -> None:
    """Write the products of some rows and a panel into `products`, from `at` on."""
    levels, depth = uint8_at(call.levels), call.depth
    if call.format == BYTES:
        multiply_bytes(
            num_rows,
            call.num_words,
            ahead,
            step,
            levels,
            first * depth,
            depth,
            int8_at(call.panels),
            column,
            int32_at(call.offsets),
            float32_at(call.scales),
            float32_at(call.bias),
            float32_at(call.maxima),
            first,
            float32_at(call.products),
            at,
            PANEL,
        )
    elif call.format == FLOATS:
        multiply_floats(
            num_rows,
            call.num_words,
            ahead,
            step,
            levels,
            first * depth,
            depth,
            float32_at(call.panels),
            column,
            float32_at(call.bias),
            float32_at(call.products),
            at,
            PANEL,
        )
    elif IS_WIDENED or call.format != PAIRS:
        multiply_floats(
            num_rows,
            call.num_words,
            ahead,
            step,
            levels,
            first * depth,
            depth,
            bfloat16_at(call.panels),
            column,
            float32_at(call.bias),
            float32_at(call.products),
            at,
            PANEL,
        )
    else:
        multiply_pairs(
            num_rows,
            call.num_words,
            ahead,
            step,
            levels,
            first * depth,
            depth,
            bfloat16_at(call.panels),
            column,
            float32_at(call.bias),
            float32_at(call.products),
            at,
            PANEL,
        )


@inlined
def _take_panel(panel: int, part: int, num_parts: int, call: ArgmaxCall) -> None:
    products = float32_at(call.products)
    largest = float32_at(call.largest + part * call.num_rows * 4)
    tokens = int64_at(call.tokens + part * call.num_rows * 8)
    column, at = panel * PANEL, part * TILE_ROWS * PANEL
    num_columns = min(PANEL, call.out_features - column)
    if call.narrow:
        own, rows = call.own + part * call.own_bytes, call.num_rows
        out, memory = float32_at(own), own + rows * PANEL * 4
        following = panel + num_parts if panel + num_parts < call.num_panels else -1
        x, depth, bias = call.levels, call.depth, call.bias
        multiply_narrow(
            NarrowPlace(call.narrow, panel, following, rows, x, depth, bias, memory, out, 0, PANEL)
        )
        for row in range(rows):
            keep_largest(out, row * PANEL, num_columns, column, row, largest, tokens)
        return
    num_tiles = tiles_of(call.num_rows)
    ahead, step = fetched(num_tiles, call.panels, panel + num_parts, call.num_panels, call.num_words)
    for tile in range(num_tiles):
        first, end = share(call.num_rows, tile, num_tiles)
        num_rows = end - first
        _multiply(column, first, num_rows, ahead, step, at, call)
        ahead += step * call.num_words
        for row in range(num_rows):
            keep_largest(products, at + row * PANEL, num_columns, column, first + row, largest, tokens)


@kernel
def _take_panels(part: int, num_parts: int, call: ArgmaxCall) -> None:
    counter = int64_at(call.counter)
    panel = take_next(counter, 0)
    while panel < call.num_panels:
        _take_panel(panel, part, num_parts, call)
        panel = take_next(counter, 0)


@kernel
def find_largest(num_parts: int, numbers: tuple[Any, ...]) -> None:
    """Run an ArgmaxCall, given as a plain tuple, on so many threads."""
    fork(_take_panels, num_parts, (ArgmaxCall(*numbers),))
