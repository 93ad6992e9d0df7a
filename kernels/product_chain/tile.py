"""Emits a small product whose sums stay in registers: of bytes by AVX512 VNNI, of bfloat16 by AVX512_BF16."""

from typing import Any, NamedTuple

from llvmlite import ir
from numba import types
from numba.core import cgutils

from kernels.compiled import Pointer, has_feature
from kernels.simd import F32, I32, I64, LANES, intrinsic

# The most rows that leave enough registers for the other factors, in a tile of PANEL columns.
TILE_ROWS = 6
_REGISTERS = 4
PANEL = _REGISTERS * LANES
WORD = (
    4  # the bytes that one instruction multiplies and adds in each lane: four of int8, or a pair of bfloat16
)

_VECTOR, _FLOATS = ir.VectorType(I32, LANES), ir.VectorType(F32, LANES)
_OF_BYTES, _OF_PAIRS = "llvm.x86.avx512.vpdpbusd.512", "llvm.x86.avx512bf16.dpbf16ps.512"


@intrinsic
def multiply_bytes(
    _context: Any,
    num_rows: Any,
    num_words: Any,
    levels: Pointer,
    levels_start: Any,
    levels_stride: Any,
    panel: Pointer,
    panel_start: Any,
    offsets: Pointer,
    offsets_start: Any,
    sums: Pointer,
) -> Any:
    """Fill `sums` with `levels @ panel + offsets`, for at most TILE_ROWS rows.

    `levels` [num_rows, num_words * WORD] are uint8, `panel` [num_words, PANEL, WORD] int8, `offsets` [PANEL]
    and `sums` [num_rows, PANEL] int32. Panels and `sums` begin where a cache line does.
    """
    index = types.intp
    signature = types.void(index, index, levels, index, index, panel, index, offsets, index, sums)

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        rows, words, levels, levels_start, stride, panel, panel_start, offsets, offsets_start, sums = (
            arguments
        )
        offsets = builder.bitcast(builder.gep(offsets, [offsets_start]), _VECTOR.as_pointer())
        starts = [builder.load(_nth(builder, offsets, register), align=4) for register in range(_REGISTERS)]
        tile = _Tile(
            _OF_BYTES, builder.gep(levels, [levels_start]), stride, builder.gep(panel, [panel_start]), sums
        )
        _multiply(builder, tile, rows, words, starts)
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def multiply_pairs(
    _context: Any,
    num_rows: Any,
    num_words: Any,
    x: Pointer,
    x_start: Any,
    x_stride: Any,
    panel: Pointer,
    panel_start: Any,
    sums: Pointer,
) -> Any:
    """Fill `sums` with `x @ panel`, for at most TILE_ROWS rows.

    `x` [num_rows, num_words * 2] and `panel` [num_words, PANEL, 2] are bfloat16; both are given as bytes,
    with their start and stride. `sums` [num_rows, PANEL] are float32. A sum takes pairs in their order, so
    a row has the same bits beside any others. Numbers and sums nearer to zero than 2**-126 count as zero.
    Panels and `sums` begin where a cache line does.
    """
    index = types.intp
    signature = types.void(index, index, x, index, index, panel, index, sums)

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        rows, words, x, x_start, stride, panel, panel_start, sums = arguments
        # Without the instruction there is no code for it; `is_available` says that it is not to be called.
        if has_feature("avx512bf16"):
            starts = [ir.Constant(_FLOATS, None)] * _REGISTERS
            tile = _Tile(
                _OF_PAIRS, builder.gep(x, [x_start]), stride, builder.gep(panel, [panel_start]), sums
            )
            _multiply(builder, tile, rows, words, starts)
        return context.get_dummy_value()

    return signature, generate


class _Tile(NamedTuple):
    """The instruction of a product, and where its factors and sums lie."""

    instruction: str
    lines: Any  # the first row
    stride: Any  # bytes between rows
    panel: Any
    sums: Any


def _multiply(builder: Any, tile: _Tile, rows: Any, words: Any, starts: list[Any]) -> None:
    """Emit the product for up to TILE_ROWS rows; `starts` are the sums at first, by register."""
    kind = starts[0].type
    panel, sums = (
        builder.bitcast(pointer, vector.as_pointer())
        for pointer, vector in ((tile.panel, _VECTOR), (tile.sums, kind))
    )
    product = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(kind, [kind, _VECTOR, _VECTOR]), tile.instruction
    )
    end = builder.append_basic_block("tile_end")
    switch = builder.switch(rows, end)
    for count in range(1, TILE_ROWS + 1):
        block = builder.append_basic_block(f"tile_{count}")
        switch.add_case(ir.Constant(rows.type, count), block)
        builder.position_at_end(block)
        lines = [
            builder.bitcast(
                builder.gep(tile.lines, [builder.mul(tile.stride, ir.Constant(I64, row))]), I32.as_pointer()
            )
            for row in range(count)
        ]
        _add_words(builder, product, lines, panel, starts, sums, words)
        builder.branch(end)
    builder.position_at_end(end)


def _add_words(
    builder: Any, product: Any, lines: list[Any], panel: Any, starts: list[Any], sums: Any, words: Any
) -> None:
    """Emit the product for all `lines`."""
    # LLVM turns these allocas into registers.
    totals = [[cgutils.alloca_once(builder, start.type) for start in starts] for _ in lines]
    for row in totals:
        for start, total in zip(starts, row, strict=True):
            builder.store(start, total)
    with cgutils.for_range(builder, words) as loop:
        line = builder.gep(panel, [builder.mul(loop.index, ir.Constant(I64, _REGISTERS))])
        weights = [builder.load(_nth(builder, line, register), align=64) for register in range(_REGISTERS)]
        for factors, row in zip(lines, totals, strict=True):
            word = builder.load(builder.gep(factors, [loop.index]), align=1)
            one = builder.insert_element(ir.Constant(_VECTOR, ir.Undefined), word, ir.Constant(I32, 0))
            spread = builder.shuffle_vector(
                one, ir.Constant(_VECTOR, ir.Undefined), ir.Constant(_VECTOR, [0] * LANES)
            )
            for weight, total in zip(weights, row, strict=True):
                builder.store(builder.call(product, [builder.load(total), spread, weight]), total)
    for number, row in enumerate(totals):
        for register, total in enumerate(row):
            builder.store(builder.load(total), _nth(builder, sums, number * _REGISTERS + register), align=64)


def _nth(builder: Any, pointer: Any, number: int) -> Any:
    return builder.gep(pointer, [ir.Constant(I64, number)])
