"""Emits a small product, finished in registers: of bytes by AVX512 VNNI, of bfloat16 by AVX512_BF16."""

from collections.abc import Callable
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
    panels: Pointer,
    column: Any,
    offsets: Pointer,
    scales: Pointer,
    bias: Pointer,
    maxima: Pointer,
    first_row: Any,
    out: Pointer,
    start: Any,
    stride: Any,
) -> Any:
    """Write `(levels @ panel + offsets) * scales * maxima + bias`, PANEL columns of at most TILE_ROWS rows.

    `levels` [num_rows, num_words * WORD] are uint8, `panels` [num_panels, num_words, PANEL, WORD] int8; sums
    of their products are exact. The panel is that of `column`, which is a multiple of PANEL; `offsets`
    (int32), `scales` and `bias` have all columns. `maxima` are read from `first_row` on. A row of `out`,
    float32, is `stride` long. Panels begin where a cache line does.
    """
    index = types.intp
    places = (levels, index, index, panels, index, offsets, scales, bias, maxima, index, out, index, index)

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        rows, words, levels, levels_start, levels_stride, panels, column, offsets, *others = arguments
        scales, bias, maxima, first_row, out, start, stride = others

        def scaled(register: int, totals: list[Any]) -> list[Any]:
            scale, more = (_nth_register(builder, one, column, register) for one in (scales, bias))
            rows = [builder.add(first_row, ir.Constant(I64, row)) for row in range(len(totals))]
            largest = [_spread(builder, builder.load(builder.gep(maxima, [row]))) for row in rows]
            products = [builder.fmul(builder.sitofp(total, _FLOATS), scale) for total in totals]
            return [_fused(builder, *factors, more) for factors in zip(products, largest, strict=True)]

        tile = _Tile(
            _OF_BYTES,
            builder.gep(levels, [levels_start]),
            levels_stride,
            _panel(builder, panels, column, words),
            [_nth_register(builder, offsets, column, register) for register in range(_REGISTERS)],
            scaled,
        )
        _multiply(builder, tile, rows, words, _Rows(builder.gep(out, [start]), stride))
        return context.get_dummy_value()

    return types.void(index, index, *places), generate


@intrinsic
def multiply_pairs(
    _context: Any,
    num_rows: Any,
    num_words: Any,
    x: Pointer,
    x_start: Any,
    x_stride: Any,
    panels: Pointer,
    column: Any,
    bias: Pointer,
    out: Pointer,
    start: Any,
    stride: Any,
) -> Any:
    """Write `x @ panel + bias`, PANEL columns of at most TILE_ROWS rows.

    `x` [num_rows, num_words * 2] and `panels` [num_panels, num_words, PANEL, 2] are bfloat16; both are given
    as bytes, with the start and stride of `x`. The panel is that of `column`, which is a multiple of PANEL;
    `bias` has all columns. A row of `out`, float32, is `stride` long. A sum takes pairs in their order, so a
    row has the same bits beside any others. Numbers and sums nearer to zero than 2**-126 count as zero.
    Panels begin where a cache line does.
    """
    index = types.intp
    signature = types.void(index, index, x, index, index, panels, index, bias, out, index, index)

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        rows, words, x, x_start, x_stride, panels, column, bias, out, start, stride = arguments

        def added(register: int, totals: list[Any]) -> list[Any]:
            more = _nth_register(builder, bias, column, register)
            return [builder.fadd(total, more) for total in totals]

        # Without the instruction there is no code for it; `is_available` says that it is not to be called.
        if has_feature("avx512bf16"):
            zeros = [ir.Constant(_FLOATS, None)] * _REGISTERS
            panel = _panel(builder, panels, column, words)
            tile = _Tile(_OF_PAIRS, builder.gep(x, [x_start]), x_stride, panel, zeros, added)
            _multiply(builder, tile, rows, words, _Rows(builder.gep(out, [start]), stride))
        return context.get_dummy_value()

    return signature, generate


class _Tile(NamedTuple):
    """A product: its instruction, where its factors lie, what its sums begin with and become."""

    instruction: str
    lines: Any  # the first row
    stride: Any  # bytes between rows
    panel: Any
    starts: list[Any]  # by register
    finish: Callable[[int, list[Any]], list[Any]]  # the sums of all rows in a register to results


class _Rows(NamedTuple):
    """Rows of results."""

    first: Any
    stride: Any


def _multiply(builder: Any, tile: _Tile, rows: Any, words: Any, out: _Rows) -> None:
    """Emit the product for up to TILE_ROWS rows."""
    kind = tile.starts[0].type
    product = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(kind, [kind, _VECTOR, _VECTOR]), tile.instruction
    )
    end = builder.append_basic_block("tile_end")
    switch = builder.switch(rows, end)
    for count in range(1, TILE_ROWS + 1):
        block = builder.append_basic_block(f"tile_{count}")
        switch.add_case(ir.Constant(rows.type, count), block)
        builder.position_at_end(block)
        totals = _add_words(builder, product, tile, count, words)
        for register in range(_REGISTERS):
            results = tile.finish(register, [builder.load(row[register]) for row in totals])
            for row, result in enumerate(results):
                place = builder.gep(out.first, [builder.mul(out.stride, ir.Constant(I64, row))])
                place = builder.bitcast(place, _FLOATS.as_pointer())
                builder.store(result, _nth(builder, place, register), align=4)
        builder.branch(end)
    builder.position_at_end(end)


def _add_words(builder: Any, product: Any, tile: _Tile, num_rows: int, words: Any) -> list[list[Any]]:
    """Emit the sums of so many rows; return them by row and register."""
    lines = [
        builder.bitcast(
            builder.gep(tile.lines, [builder.mul(tile.stride, ir.Constant(I64, row))]), I32.as_pointer()
        )
        for row in range(num_rows)
    ]
    # LLVM turns these allocas into registers.
    totals = [[cgutils.alloca_once(builder, start.type) for start in tile.starts] for _ in lines]
    for row in totals:
        for start, total in zip(tile.starts, row, strict=True):
            builder.store(start, total)
    with cgutils.for_range(builder, words) as loop:
        line = builder.gep(tile.panel, [builder.mul(loop.index, ir.Constant(I64, _REGISTERS))])
        weights = [builder.load(_nth(builder, line, register), align=64) for register in range(_REGISTERS)]
        for factors, row in zip(lines, totals, strict=True):
            word = _spread(builder, builder.load(builder.gep(factors, [loop.index]), align=1))
            for weight, total in zip(weights, row, strict=True):
                builder.store(builder.call(product, [builder.load(total), word, weight]), total)
    return totals


def _panel(builder: Any, panels: Any, column: Any, words: Any) -> Any:
    """Return the pointer to the panel of a column."""
    start = builder.mul(column, builder.mul(words, ir.Constant(I64, WORD)))
    return builder.bitcast(builder.gep(panels, [start]), _VECTOR.as_pointer())


def _nth_register(builder: Any, numbers: Any, start: Any, register: int) -> Any:
    """Return a register of numbers of 4 bytes, of those from one on."""
    kind = ir.VectorType(numbers.type.pointee, LANES)
    first = builder.bitcast(builder.gep(numbers, [start]), kind.as_pointer())
    return builder.load(_nth(builder, first, register), align=4)


def _spread(builder: Any, value: Any) -> Any:
    """Return a register with a value in every lane."""
    undefined = ir.Constant(ir.VectorType(value.type, LANES), ir.Undefined)
    one = builder.insert_element(undefined, value, ir.Constant(I32, 0))
    return builder.shuffle_vector(one, undefined, ir.Constant(_VECTOR, [0] * LANES))


def _fused(builder: Any, x: Any, y: Any, z: Any) -> Any:
    """Return `x * y + z`, rounded once."""
    kind = ir.FunctionType(_FLOATS, [_FLOATS] * 3)
    return builder.call(
        cgutils.get_or_insert_function(builder.module, kind, f"llvm.fma.v{LANES}f32"), [x, y, z]
    )


def _nth(builder: Any, pointer: Any, number: int) -> Any:
    return builder.gep(pointer, [ir.Constant(I64, number)])
