"""Emits the product of a few rows and a panel of levels of 4 or 8 bits, which are unpacked in registers.

Levels are multiplied as they are, and the sums of a group of columns are scaled once. So a pair of levels of
4 bits takes two instructions beside the products of six rows. Levels that take more are kept once unpacked,
for further rows.
"""

from typing import Any, NamedTuple

from llvmlite import ir
from numba import types
from numba.core import cgutils

from kernels.compiled import Pointer
from kernels.product_chain.levels import (
    FLOATS,
    REGISTERS,
    WORDS,
    Column,
    LevelLine,
    Unpack,
    called,
    line_of,
    unpacking,
)
from kernels.product_chain.tile import TILE_ROWS
from kernels.simd import I32, I64, LANES, fetch_line, intrinsic, lanes_of


@intrinsic
def multiply_levels(
    _context: Any,
    num_rows: Any,
    num_columns: Any,
    ahead: Any,
    step: Any,
    x: Pointer,
    x_stride: Any,
    levels: Pointer,
    table: Pointer,
    numbers: Pointer,
    out: Pointer,
    start: Any,
    stride: Any,
) -> Any:
    """Add the products of at most TILE_ROWS rows and some columns of a panel, scaled, to `out`.

    `x` is bfloat16 or float32, and `out` float32; its start and the strides are in elements. The columns, an
    even number, share the `numbers` of a group. `levels` are as `line_of` tells, and `table` as `unpacking`
    does. A sum takes columns in their order, in bfloat16 in pairs, so a row has the same bits beside any
    others. In bfloat16, products nearer to zero than 2**-126 count as zero, and so do factors. With each pair
    of columns, `step` bytes are prefetched from the address `ahead` on, a cache line at most.
    """
    index = types.intp
    places = (x, index, levels, table, numbers, out, index, index)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _emit(builder, signature, arguments, None)
        return context.get_dummy_value()

    return types.void(index, index, index, index, *places), generate


@intrinsic
def multiply_and_keep(
    _context: Any,
    num_rows: Any,
    num_columns: Any,
    ahead: Any,
    step: Any,
    x: Pointer,
    x_stride: Any,
    levels: Pointer,
    table: Pointer,
    numbers: Pointer,
    out: Pointer,
    start: Any,
    stride: Any,
    kept: Pointer,
) -> Any:
    """Do `multiply_levels`, and write what was unpacked to `kept`, bfloat16 or float32 as `x`."""
    index = types.intp
    places = (x, index, levels, table, numbers, out, index, index, kept)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        *others, kept = arguments
        _emit(builder, signature, others, kept)
        return context.get_dummy_value()

    return types.void(index, index, index, index, *places), generate


class _Tile(NamedTuple):
    """A product: its lines of levels, the first row of its factors, and where unpacked levels are kept."""

    unpack: Unpack
    levels: Any
    line: LevelLine
    num_lines: Any
    is_pairs: bool
    x: Any  # by the words of its rows
    x_stride: Any
    kept: Any | None
    ahead: Any
    step: Any  # of prefetches, by pairs of columns


def _emit(builder: Any, signature: Any, arguments: list[Any], kept: Any | None) -> None:
    """Emit the product for up to TILE_ROWS rows."""
    rows, columns, ahead, step, x, x_stride, levels, table, numbers, out, start, stride = arguments
    is_pairs = signature.args[4].dtype == types.uint16
    kind = signature.args[6].dtype
    line = line_of(kind)
    tile = _Tile(
        unpacking(builder, kind, table, numbers, is_pairs=is_pairs),
        levels,
        line,
        builder.udiv(columns, ir.Constant(I64, line.num_columns)),
        is_pairs,
        builder.bitcast(x, I32.as_pointer()),
        builder.udiv(x_stride, ir.Constant(I64, 2)) if is_pairs else x_stride,
        kept,
        ahead,
        step,
    )
    first = builder.bitcast(numbers, FLOATS.as_pointer())
    end = builder.append_basic_block("levels_end")
    switch = builder.switch(rows, end)
    for count in range(1, TILE_ROWS + 1):
        block = builder.append_basic_block(f"levels_{count}")
        switch.add_case(ir.Constant(rows.type, count), block)
        builder.position_at_end(block)
        totals = _add_lines(builder, tile, count)
        scales = [builder.load(_nth(builder, first, register), align=4) for register in range(REGISTERS)]
        for row, sums in enumerate(totals):
            at = builder.add(start, builder.mul(stride, ir.Constant(I64, row)))
            place = builder.bitcast(builder.gep(out, [at]), FLOATS.as_pointer())
            for register, (total, scale) in enumerate(zip(sums, scales, strict=True)):
                target = _nth(builder, place, register)
                before = builder.load(target, align=4)
                builder.store(_fused(builder, builder.load(total), scale, before), target, align=4)
        builder.branch(end)
    builder.position_at_end(end)


def _add_lines(builder: Any, tile: _Tile, num_rows: int) -> list[Column]:
    """Emit the sums of so many rows; return them by row and register."""
    firsts = [
        builder.gep(tile.x, [builder.mul(tile.x_stride, ir.Constant(I64, row))]) for row in range(num_rows)
    ]
    # LLVM turns these allocas into registers.
    totals = [[cgutils.alloca_once(builder, FLOATS) for _ in range(REGISTERS)] for _ in firsts]
    for row in totals:
        for total in row:
            builder.store(ir.Constant(FLOATS, None), total)
    with cgutils.for_range(builder, tile.num_lines) as loop:
        line = builder.gep(tile.levels, [builder.mul(loop.index, ir.Constant(I64, tile.line.num_elements))])
        num_words = tile.line.num_columns // (2 if tile.is_pairs else 1)
        first = builder.mul(loop.index, ir.Constant(I64, num_words))
        columns = builder.mul(loop.index, ir.Constant(I64, tile.line.num_columns))
        pair = builder.lshr(columns, ir.Constant(I64, 1))
        fetch_line(builder, builder.add(tile.ahead, builder.mul(pair, tile.step)))
        for number, weights in enumerate(tile.unpack(line)):
            word = builder.add(first, ir.Constant(I64, number))
            if tile.kept is not None:
                _keep(builder, tile.kept, word, weights)
            for factors, row in zip(firsts, totals, strict=True):
                factor = _spread(builder, builder.load(builder.gep(factors, [word]), align=1))
                for weight, total in zip(weights, row, strict=True):
                    added = _added(builder, builder.load(total), factor, weight, is_pairs=tile.is_pairs)
                    builder.store(added, total)
    return totals


def _keep(builder: Any, kept: Any, word: Any, weights: Column) -> None:
    """Emit the stores of a column or pair."""
    line = builder.gep(
        builder.bitcast(kept, weights[0].type.as_pointer()), [builder.mul(word, ir.Constant(I64, REGISTERS))]
    )
    for register, weight in enumerate(weights):
        builder.store(weight, _nth(builder, line, register), align=4)


def _added(builder: Any, total: Any, factor: Any, weight: Any, *, is_pairs: bool) -> Any:
    """Return a sum with the product of a column, or of both of a pair, added."""
    if is_pairs:
        return called(builder, "llvm.x86.avx512bf16.dpbf16ps.512", FLOATS, [total, factor, weight])
    return _fused(builder, builder.bitcast(factor, FLOATS), weight, total)


def _fused(builder: Any, x: Any, y: Any, z: Any) -> Any:
    """Return `x * y + z`, rounded once."""
    return called(builder, f"llvm.fma.v{LANES}f32", FLOATS, [x, y, z])


def _spread(builder: Any, word: Any) -> Any:
    undefined = ir.Constant(lanes_of(I32, LANES), ir.Undefined)
    one = builder.insert_element(undefined, word, ir.Constant(I32, 0))
    return builder.shuffle_vector(one, undefined, ir.Constant(WORDS, [0] * LANES))


def _nth(builder: Any, pointer: Any, number: int) -> Any:
    return builder.gep(pointer, [ir.Constant(I64, number)])
