"""Writes rows as the factors that tiles multiply: quantized to levels, rounded to bfloat16, or as they are.

The intrinsics are what Numba leaves scalar in part.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from kernels.compiled import Pointer, inlined, kernel
from kernels.product_chain.tile import OF_BYTES, OF_PAIRS, WORD
from kernels.simd import (
    F32,
    I32,
    I64,
    LANES,
    bfloat16_at,
    copy,
    float32_at,
    intrinsic,
    load,
    load_lanes,
    maximum,
    rounded,
    store,
    store_level,
    uint8_at,
)
from kernels.threads import fork, share

LARGEST = 127  # of a symmetric int8 range
ZERO = 128  # the level of a zero in an activation, which is unsigned
# The least maximum from which a scale is computed, so that an all-zero token stays zero.
SMALLEST_MAXIMUM = 1e-8
# Weights in int8; in bfloat16, for rows that are rounded to it or not; in float32.
BYTES, PAIRS, WIDENED_PAIRS, FLOATS = range(4)
# The bytes of a row's factors for a word of a weight.
FACTOR_BYTES = (WORD * len(OF_BYTES), WORD * len(OF_PAIRS), 2 * WORD, WORD)
# Whether bfloat16 is widened, so that factors are float32 for all floats.
IS_WIDENED = len(OF_PAIRS) == 2

_LEVEL_BYTES = len(OF_BYTES)  # 2: in words of two passes, levels are 16 bits, those of even bytes first
_FLOATS, _WORDS = ir.VectorType(F32, LANES), ir.VectorType(I32, LANES)
_LEVELS = ir.VectorType(ir.IntType(8 * _LEVEL_BYTES), LANES)
_ORDER = [
    first + index
    for first in range(0, LANES, 4)
    for index in ((0, 2, 1, 3) if _LEVEL_BYTES == 2 else range(4))
]
_ABSOLUTE = 0x7FFFFFFF  # of a float32's bits


@intrinsic
def largest_of(_context: Any, x: Pointer, start: Any, count: Any) -> Any:
    """Return the largest absolute value of `count` float32 elements, a multiple of LANES, or NaN if one is.

    As an integer, the absolute value of NaN is larger than every number.
    """

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        x, start, count = arguments
        first = builder.bitcast(builder.gep(x, [start]), _WORDS.as_pointer())
        largest = cgutils.alloca_once(builder, _WORDS)
        builder.store(ir.Constant(_WORDS, [0] * LANES), largest)
        larger = _function(builder, f"llvm.umax.v{LANES}i32", _WORDS, [_WORDS, _WORDS])
        with cgutils.for_range(builder, builder.udiv(count, ir.Constant(I64, LANES))) as loop:
            bits = builder.load(builder.gep(first, [loop.index]), align=4)
            bits = builder.and_(bits, ir.Constant(_WORDS, [_ABSOLUTE] * LANES))
            builder.store(builder.call(larger, [builder.load(largest), bits]), largest)
        reduce = _function(builder, f"llvm.vector.reduce.umax.v{LANES}i32", I32, [_WORDS])
        return builder.bitcast(builder.call(reduce, [builder.load(largest)]), F32)

    return types.float32(x, types.intp, types.intp), generate


@intrinsic
def store_levels(
    _context: Any, levels: Pointer, levels_start: Any, x: Pointer, start: Any, step: Any, zero: Any
) -> Any:
    """Store `x * step + zero` of LANES elements as levels, from a byte on; fractions are cut off."""

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        levels, levels_start, x, start, step, zero = arguments
        value = load_lanes(builder, builder.gep(x, [start]), LANES)
        value = builder.fadd(builder.fmul(value, _spread(builder, step)), _spread(builder, zero))
        value = builder.trunc(builder.fptosi(value, _WORDS), _LEVELS)
        value = builder.shuffle_vector(value, value, ir.Constant(_WORDS, _ORDER))
        target = builder.bitcast(builder.gep(levels, [levels_start]), _LEVELS.as_pointer())
        builder.store(value, target, align=1)
        return context.get_dummy_value()

    index = types.intp
    return types.void(levels, index, x, index, types.float32, types.float32), generate


@inlined
def _store_level(levels: Pointer, begin: int, index: int, value: np.float32) -> None:
    """Store a level as `store_levels` does."""
    at = begin + index
    if _LEVEL_BYTES == 2:
        at = begin + 2 * (index // 4 * 4 + index % 2 * 2 + index % 4 // 2)
        levels[at + 1] = 0
    store_level(levels, at, value)


@inlined
def _quantize(x: Pointer, start: int, width: int, levels: Pointer, begin: int) -> np.float32:
    """Write a row's levels from a byte on; return its largest absolute value."""
    whole = width // LANES * LANES
    largest = maximum(np.float32(SMALLEST_MAXIMUM), largest_of(x, start, whole))
    for index in range(whole, width):
        largest = maximum(largest, abs(load(x, start + index)))
    # The conversion truncates; the added half makes it round.
    step, zero = np.float32(LARGEST) / largest, np.float32(ZERO + 0.5)
    for index in range(0, whole, LANES):
        store_levels(levels, begin + index * _LEVEL_BYTES, x, start + index, step, zero)
    for index in range(whole, width):
        _store_level(levels, begin, index, load(x, start + index) * step + zero)
    return largest


@inlined
def encode_row(
    format_: int, width: int, x: Pointer, start: int, factors: int, depth: int, maxima: int, row: int
) -> None:
    """Write a row of `x` as a row of factors for weights in a format.

    `factors` [num_rows, depth] bytes and `maxima` [num_rows] float32 are given by their addresses; a row for
    BYTES has its largest absolute value there.
    """
    begin, wide = row * depth, float32_at(factors + row * depth)
    if format_ == BYTES:
        store(float32_at(maxima), row, _quantize(x, start, width, uint8_at(factors), begin))
    elif format_ == PAIRS and not IS_WIDENED:
        narrow = bfloat16_at(factors + begin)
        copy(width, x, start, narrow, 0)
        if width % 2:
            store(narrow, width, np.float32(0))  # the pair's other one: what lies there may be NaN
    else:
        if format_ == PAIRS:
            for index in range(width):
                store(wide, index, rounded(load(x, start + index)))
        else:
            copy(width, x, start, wide, 0)
        if width % 2 and format_ != FLOATS:
            store(wide, width, np.float32(0))


@kernel
def _encode(
    part: int,
    num_parts: int,
    format_: int,
    num_rows: int,
    width: int,
    x: int,
    factors: int,
    depth: int,
    maxima: int,
) -> None:
    begin, end = share(num_rows, part, num_parts)
    for row in range(begin, end):
        encode_row(format_, width, float32_at(x), row * width, factors, depth, maxima, row)


@kernel
def encode_rows(
    num_parts: int, format_: int, num_rows: int, width: int, x: int, factors: int, depth: int, maxima: int
) -> None:
    """Do `encode_row` for all rows of `x` [num_rows, width] float32, dense, given by its address too."""
    fork(_encode, num_parts, (format_, num_rows, width, x, factors, depth, maxima))


def _function(builder: Any, name: str, result: Any, arguments: list[Any]) -> Any:
    return cgutils.get_or_insert_function(builder.module, ir.FunctionType(result, arguments), name)


def _spread(builder: Any, value: Any) -> Any:
    one = builder.insert_element(ir.Constant(_FLOATS, ir.Undefined), value, ir.Constant(I32, 0))
    return builder.shuffle_vector(one, ir.Constant(_FLOATS, ir.Undefined), ir.Constant(_WORDS, [0] * LANES))
