"""Emits a small product of bytes whose sums stay in registers, by AVX512 VNNI."""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from kernels.compiled import Pointer
from kernels.simd import I32, I64, LANES, intrinsic

# The most rows that leave enough registers for the other factors, in a tile of PANEL columns.
TILE_ROWS = 6
_REGISTERS = 4
PANEL = _REGISTERS * LANES
WORD = 4  # the bytes that one instruction multiplies and adds in each lane

_VECTOR = ir.VectorType(I32, LANES)


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
        levels = builder.gep(levels, [levels_start])
        panel, offsets, sums = (
            builder.bitcast(pointer, _VECTOR.as_pointer())
            for pointer in (
                builder.gep(panel, [panel_start]),
                builder.gep(offsets, [offsets_start]),
                sums,
            )
        )
        end = builder.append_basic_block("bytes_end")
        switch = builder.switch(rows, end)
        for count in range(1, TILE_ROWS + 1):
            block = builder.append_basic_block(f"bytes_{count}")
            switch.add_case(ir.Constant(rows.type, count), block)
            builder.position_at_end(block)
            lines = [
                builder.bitcast(
                    builder.gep(levels, [builder.mul(stride, ir.Constant(I64, row))]), I32.as_pointer()
                )
                for row in range(count)
            ]
            _add_words(builder, lines, panel, offsets, sums, words)
            builder.branch(end)
        builder.position_at_end(end)
        return context.get_dummy_value()

    return signature, generate


def _add_words(builder: Any, lines: list[Any], panel: Any, offsets: Any, sums: Any, words: Any) -> None:
    """Emit the product for all `lines`."""
    name = "llvm.x86.avx512.vpdpbusd.512"
    add_products = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(_VECTOR, [_VECTOR] * 3), name
    )

    def nth(pointer: Any, number: int) -> Any:
        return builder.gep(pointer, [ir.Constant(I64, number)])

    # LLVM turns these allocas into registers.
    totals = [[cgutils.alloca_once(builder, _VECTOR) for _ in range(_REGISTERS)] for _ in lines]
    for register in range(_REGISTERS):
        start = builder.load(nth(offsets, register), align=4)
        for row in totals:
            builder.store(start, row[register])
    with cgutils.for_range(builder, words) as loop:
        line = builder.gep(panel, [builder.mul(loop.index, ir.Constant(I64, _REGISTERS))])
        weights = [builder.load(nth(line, register), align=64) for register in range(_REGISTERS)]
        for levels, row in zip(lines, totals, strict=True):
            word = builder.load(builder.gep(levels, [loop.index]), align=1)
            one = builder.insert_element(ir.Constant(_VECTOR, ir.Undefined), word, ir.Constant(I32, 0))
            spread = builder.shuffle_vector(
                one, ir.Constant(_VECTOR, ir.Undefined), ir.Constant(_VECTOR, [0] * LANES)
            )
            for weight, total in zip(weights, row, strict=True):
                builder.store(builder.call(add_products, [builder.load(total), spread, weight]), total)
    for number, row in enumerate(totals):
        for register, total in enumerate(row):
            builder.store(builder.load(total), nth(sums, number * _REGISTERS + register), align=64)
