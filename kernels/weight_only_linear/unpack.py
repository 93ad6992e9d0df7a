"""Emits code that turns what a tile holds into float32 weights, in registers of sixteen rows."""

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from kernels.compiled import Pointer, has_feature
from kernels.simd import F32, I32, I64, LANES, intrinsic, lanes_of, load_lanes, store_lanes

TILE = 64  # rows of a weight that lie together
COLUMNS_OF_A_WORD = 8  # where levels have 4 bits
# The most tokens for which levels are unpacked in registers rather than into a panel.
MOST_DIRECT_ROWS = 4
# Where the numbers of a group lie, counted from its first: scales, offsets, and the table of 16 values.
OFFSETS, TABLE, NUM_FACTORS = TILE, 2 * TILE, 2 * TILE + 16

_REGISTERS = TILE // LANES
_I8, _I16 = ir.IntType(8), ir.IntType(16)
_FLOATS, _WORDS = lanes_of(F32, LANES), lanes_of(I32, LANES)
# Turns the levels of one column, or of those of a word, into floats, by depth and register.
_Levels = Callable[[Any, Any], list[list[Any]]]


@intrinsic
def unpack(
    _context: Any,
    depth: Any,
    source: Pointer,
    source_start: Any,
    factors: Pointer,
    target: Pointer,
    target_start: Any,
) -> Any:
    """Write `depth` columns of a tile as float32 [depth, 64]; they share the numbers in `factors`."""
    index = types.intp
    signature = types.void(index, source, index, factors, target, index)

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        depth, source_pointer, source_start, numbers, target, target_start = arguments
        pointer = builder.gep(source_pointer, [source_start])
        target = builder.gep(target, [target_start])

        def write(at: Any, weights: list[Any]) -> None:
            place = builder.mul(at, ir.Constant(I64, TILE))
            for register, weight in enumerate(weights):
                to = builder.add(place, ir.Constant(I64, register * LANES))
                store_lanes(builder, weight, builder.gep(target, [to]))

        _for_each_column(builder, source.dtype, pointer, depth, numbers, write)
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def multiply_add(
    _context: Any,
    num_rows: Any,
    depth: Any,
    source: Pointer,
    source_start: Any,
    factors: Pointer,
    x: Pointer,
    x_start: Any,
    x_stride: Any,
    sums: Pointer,
    sums_start: Any,
) -> Any:
    """Add the products of at most four rows of `x` with `depth` columns of a tile into `sums`, [rows, 64].

    Each sum goes on by one fused multiply-add a column, as `multiply_tile` does it with unpacked weights.
    """
    index = types.intp
    signature = types.void(index, index, source, index, factors, x, index, index, sums, index)

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        rows, depth, source_pointer, source_start, numbers, x, x_start, x_stride, sums, sums_start = arguments
        pointer = builder.gep(source_pointer, [source_start])
        end = builder.append_basic_block("rows_end")
        switch = builder.switch(rows, end)
        for count in range(1, MOST_DIRECT_ROWS + 1):
            block = builder.append_basic_block(f"rows_{count}")
            switch.add_case(ir.Constant(rows.type, count), block)
            builder.position_at_end(block)
            lines = [
                builder.gep(x, [builder.add(x_start, builder.mul(x_stride, ir.Constant(I64, row)))])
                for row in range(count)
            ]
            places = [
                builder.gep(sums, [builder.add(sums_start, ir.Constant(I64, LANES * place))])
                for place in range(count * _REGISTERS)
            ]
            _add_products(builder, source.dtype, pointer, depth, numbers, lines, places)
            builder.branch(end)
        builder.position_at_end(end)
        return context.get_dummy_value()

    return signature, generate


def _add_products(
    builder: Any,
    kind: Any,
    pointer: Any,
    depth: Any,
    numbers: Any,
    lines: list[Any],
    places: list[Any],
) -> None:
    """Emit the work of `multiply_add` for as many rows as there are `lines`."""
    # LLVM turns these allocas into registers.
    totals = [cgutils.alloca_once(builder, _FLOATS) for _ in places]
    for total, place in zip(totals, places, strict=True):
        builder.store(load_lanes(builder, place, LANES), total)
    fused = _fused(builder)

    def add(at: Any, weights: list[Any]) -> None:
        for row, line in enumerate(lines):
            value = _broadcast(builder, builder.load(builder.gep(line, [at])))
            for register, weight in enumerate(weights):
                total = totals[row * _REGISTERS + register]
                builder.store(builder.call(fused, [value, weight, builder.load(total)]), total)

    _for_each_column(builder, kind, pointer, depth, numbers, add)
    for total, place in zip(totals, places, strict=True):
        store_lanes(builder, builder.load(total), place)


def _for_each_column(
    builder: Any,
    kind: Any,
    pointer: Any,
    depth: Any,
    numbers: Any,
    use: Callable[[Any, list[Any]], None],
) -> None:
    """Emit a loop over the columns of a tile, with `use` of the number and the weights of each."""
    fused = _fused(builder)

    def factor(start: int) -> Any:
        return load_lanes(builder, builder.gep(numbers, [ir.Constant(I64, start)]), LANES)

    def scaled(levels: list[Any]) -> list[Any]:
        return [
            builder.call(fused, [level, scale, offset])
            for level, scale, offset in zip(levels, scales, offsets, strict=True)
        ]

    scales, offsets = (
        [factor(start + LANES * register) for register in range(_REGISTERS)] for start in (0, OFFSETS)
    )
    levels_of: _Levels
    if kind == types.uint32:
        levels_of, at_once = _four_bits(builder, factor(TABLE)), COLUMNS_OF_A_WORD
    else:
        levels_of, at_once = _int8 if kind == types.int8 else _fp8, 1
    with cgutils.for_range(builder, builder.udiv(depth, ir.Constant(I64, at_once))) as loop:
        line = builder.gep(pointer, [builder.mul(loop.index, ir.Constant(I64, TILE))])
        first = builder.mul(loop.index, ir.Constant(I64, at_once))
        for number, levels in enumerate(levels_of(builder, line)):
            use(builder.add(first, ir.Constant(I64, number)), scaled(levels))


def _int8(builder: Any, line: Any) -> list[list[Any]]:
    return [[load_lanes(builder, one, LANES) for one in _runs(builder, line)]]


def _fp8(builder: Any, line: Any) -> list[list[Any]]:
    """Return levels of e4m3 as float16 reads their bits: times 2**-8."""
    halves = lanes_of(_I16, LANES)
    registers = []
    for one in _runs(builder, line):
        run = builder.load(builder.bitcast(one, lanes_of(_I8, LANES).as_pointer()), align=1)
        # The sign is copied into the bit that float16 has for larger exponents, and taken out there.
        bits = builder.shl(builder.sext(run, halves), ir.Constant(halves, [7] * LANES))
        bits = builder.and_(bits, ir.Constant(halves, [0xBFFF] * LANES))
        registers.append(builder.fpext(builder.bitcast(bits, lanes_of(ir.HalfType(), LANES)), _FLOATS))
    return [registers]


def _four_bits(builder: Any, table: Any) -> _Levels:
    """Return what looks up the levels of words, of which each holds one row's for eight columns."""
    # With AVX512, one instruction picks from sixteen floats.
    look_up = _permutation(builder, table) if has_feature("avx512f") else _choice(builder, table)

    def levels(builder: Any, line: Any) -> list[list[Any]]:
        words = [
            builder.load(builder.bitcast(one, _WORDS.as_pointer()), align=4) for one in _runs(builder, line)
        ]
        return [
            [look_up(builder.lshr(word, ir.Constant(_WORDS, [4 * depth] * LANES))) for word in words]
            for depth in range(COLUMNS_OF_A_WORD)
        ]

    return levels


def _permutation(builder: Any, table: Any) -> Callable[[Any], Any]:
    """Return what picks from `table` by the low four bits of each lane."""
    name = "llvm.x86.avx512.permvar.sf.512"
    function = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(_FLOATS, [_FLOATS, _WORDS]), name
    )
    return lambda numbers: builder.call(function, [table, numbers])


def _choice(builder: Any, table: Any) -> Callable[[Any], Any]:
    """Do the same by halving the table for each of the four bits."""
    values = [
        _broadcast(builder, builder.extract_element(table, ir.Constant(I32, number))) for number in range(16)
    ]

    def look_up(numbers: Any) -> Any:
        left = values
        for bit in range(4):
            shifted = builder.lshr(numbers, ir.Constant(_WORDS, [bit] * LANES))
            is_odd = builder.trunc(shifted, lanes_of(ir.IntType(1), LANES))
            left = [
                builder.select(is_odd, odd, even) for even, odd in zip(left[::2], left[1::2], strict=True)
            ]
        return left[0]

    return look_up


def _runs(builder: Any, line: Any) -> list[Any]:
    """Return pointers to each register's elements."""
    return [builder.gep(line, [ir.Constant(I64, LANES * register)]) for register in range(_REGISTERS)]


def _fused(builder: Any) -> Any:
    name = f"llvm.fma.v{LANES}f32"
    return cgutils.get_or_insert_function(builder.module, ir.FunctionType(_FLOATS, [_FLOATS] * 3), name)


def _broadcast(builder: Any, value: Any) -> Any:
    one = builder.insert_element(ir.Constant(_FLOATS, ir.Undefined), value, ir.Constant(I32, 0))
    return builder.shuffle_vector(one, ir.Constant(_FLOATS, ir.Undefined), ir.Constant(_WORDS, [0] * LANES))
