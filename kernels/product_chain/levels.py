"""Emits code that turns levels of 4 or 8 bits into what a tile multiplies, in registers; needs AVX512.

bfloat16 holds a level of fp8, and one of int8 or 4 bits less its zero point, exactly. What is emitted is
pairs of columns in it, or single columns in float32.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from llvmlite import ir
from numba import types
from numba.core import cgutils

from kernels.compiled import has_feature
from kernels.simd import F32, I32, I64, LANES, lanes_of

# Whether this processor runs what is emitted; pairs need its products of bfloat16 besides.
UNPACKS = has_feature("avx512bw")
TILE = 64  # the output channels of a panel
REGISTERS = TILE // LANES
# What lies in memory for a group of columns: float32 scales, and int32 zero points.
ZERO_POINTS, GROUP_NUMBERS = TILE, 2 * TILE

FLOATS, WORDS = lanes_of(F32, LANES), lanes_of(I32, LANES)
_I8, _I16 = ir.IntType(8), ir.IntType(16)
_HALVES = lanes_of(_I16, 2 * LANES)  # a register of bfloat16
# Brings the level of a register's channel to the lowest bits.
_SHIFTS = range(0, 16, 4)
_LEVEL, _SIGN = 0xF, 0x8000
# What an exponent of e4m3 lacks to one of bfloat16, and where a magnitude of e4m3 lies in that.
_EXPONENT, _MAGNITUDE = 120 << 7, 0x7F << 4

# What all registers hold of one column, or of a pair.
Column = list[Any]
# Emits the columns of the line at a pointer.
Unpack = Callable[[Any], Iterator[Column]]


class LevelLine(NamedTuple):
    """Levels that are unpacked together: whole columns of a panel."""

    num_elements: int  # of their type
    num_columns: int


def line_of(levels: Any) -> LevelLine:
    """Return how levels of a Numba type lie.

    Levels of 4 bits are uint32, or int32 if they have zero points; int8 are int8, and e4m3 uint8. What is
    unpacked is bfloat16, as uint16, or float32. All but float32 lie in pairs of columns. Those of 4 bits are
    words: the lower half has the levels of the first column, of each register's channel.
    """
    if levels in {types.uint32, types.int32}:
        return LevelLine(LANES, 2)
    return LevelLine(TILE, 1) if levels == types.float32 else LevelLine(2 * TILE, 2)


def unpacking(builder: Any, levels: Any, table: Any, numbers: Any, *, is_pairs: bool) -> Unpack:
    """Return what emits the pairs, or the columns, of a line.

    `table` points to the float32 of levels 0 to 15; to their bfloat16, twice, for pairs, or to those of 0 to
    15 and then -16 to -1 if there are zero points; of e4m3, to the bfloat16 of 0 to 7, four times. `numbers`
    are those of the group.
    """
    if levels in {types.uint32, types.int32}:
        zeros = _zero_points(builder, numbers) if levels == types.int32 else None
        if is_pairs:
            return _pairs_of_four_bits(builder, _load(builder, table, _HALVES), zeros)
        return _floats_of_four_bits(builder, _load(builder, table, FLOATS), zeros)
    if levels == types.int8:
        emit = _pairs_of_int8 if is_pairs else _floats_of_int8
        return emit(builder, _zero_points(builder, numbers))
    if levels == types.uint8:
        return _fp8(builder, _load(builder, table, _HALVES), is_pairs=is_pairs)
    kind = WORDS if is_pairs else FLOATS
    return lambda line: iter([[_load(builder, line, kind, register) for register in range(REGISTERS)]])


def called(builder: Any, name: str, result: Any, arguments: list[Any]) -> Any:
    """Emit the call of one of LLVM's own functions."""
    kind = ir.FunctionType(result, [one.type for one in arguments])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), arguments)


def _zero_points(builder: Any, numbers: Any) -> Column:
    words = builder.bitcast(numbers, I32.as_pointer())
    first = builder.gep(words, [ir.Constant(I64, ZERO_POINTS)])
    return [_load(builder, first, WORDS, register) for register in range(REGISTERS)]


def _pairs_of_four_bits(builder: Any, table: Any, zeros: Column | None) -> Unpack:
    """Look up both halves of words at once, by the lowest five bits of each."""
    both = None
    if zeros is not None:
        both = [builder.bitcast(builder.or_(one, builder.shl(one, _words(16))), _HALVES) for one in zeros]

    def unpack(line: Any) -> Iterator[Column]:
        word = _load(builder, line, WORDS)
        halves = [builder.bitcast(builder.lshr(word, _words(shift)), _HALVES) for shift in _SHIFTS]
        if both is not None:
            halves = [builder.and_(half, _halves(_LEVEL)) for half in halves]
            halves = [builder.sub(half, zero) for half, zero in zip(halves, both, strict=True)]
        yield [builder.bitcast(_looked_up(builder, table, half), WORDS) for half in halves]

    return unpack


def _floats_of_four_bits(builder: Any, table: Any, zeros: Column | None) -> Unpack:
    def unpack(line: Any) -> Iterator[Column]:
        word = _load(builder, line, WORDS)
        for column in range(2):
            levels = [builder.lshr(word, _words(16 * column + shift)) for shift in _SHIFTS]
            if zeros is None:
                name = "llvm.x86.avx512.permvar.sf.512"
                yield [called(builder, name, FLOATS, [table, level]) for level in levels]
            else:
                yield _less(builder, [builder.and_(level, _words(_LEVEL)) for level in levels], zeros)

    return unpack


def _pairs_of_int8(builder: Any, zeros: Column) -> Unpack:
    """Convert eight pairs at a time to float32, and these to bfloat16, which rounds nothing."""

    def unpack(line: Any) -> Iterator[Column]:
        column = []
        for register, zero in enumerate(zeros):
            floats = []
            for half in range(2):
                run = _load(builder, line, lanes_of(_I8, LANES), 2 * register + half)
                lanes = [half * LANES // 2 + lane // 2 for lane in range(LANES)]
                twice = builder.shuffle_vector(zero, zero, ir.Constant(WORDS, lanes))
                floats += _less(builder, [builder.sext(run, WORDS)], [twice])
            low, high = floats
            pairs = called(builder, "llvm.x86.avx512bf16.cvtne2ps2bf16.512", _HALVES, [high, low])
            column.append(builder.bitcast(pairs, WORDS))
        yield column

    return unpack


def _floats_of_int8(builder: Any, zeros: Column) -> Unpack:
    def unpack(line: Any) -> Iterator[Column]:
        runs = [_load(builder, line, lanes_of(_I16, LANES), register) for register in range(REGISTERS)]
        pairs = [builder.zext(run, WORDS) for run in runs]
        for shift in (24, 16):  # brings the first of a pair to the top of its word, or the second
            levels = [builder.ashr(builder.shl(pair, _words(shift)), _words(24)) for pair in pairs]
            yield _less(builder, levels, zeros)

    return unpack


def _fp8(builder: Any, table: Any, *, is_pairs: bool) -> Unpack:
    """Move the bits of e4m3 to their places in bfloat16; look up those without an exponent."""

    def unpack(line: Any) -> Iterator[Column]:
        pairs = []
        for register in range(REGISTERS):
            level = builder.sext(_load(builder, line, lanes_of(_I8, 2 * LANES), register), _HALVES)
            moved = builder.and_(builder.shl(level, _halves(4)), _halves(_MAGNITUDE))
            is_small = builder.icmp_unsigned("<", moved, _halves(8 << 4))
            small = _looked_up(builder, table, level)
            magnitude = builder.select(is_small, small, builder.add(moved, _halves(_EXPONENT)))
            pair = builder.or_(magnitude, builder.and_(level, _halves(_SIGN)))
            pairs.append(builder.bitcast(pair, WORDS))
        if is_pairs:
            yield pairs
            return
        yield [builder.bitcast(builder.shl(pair, _words(16)), FLOATS) for pair in pairs]
        yield [builder.bitcast(builder.and_(pair, _words(0xFFFF0000)), FLOATS) for pair in pairs]

    return unpack


def _looked_up(builder: Any, table: Any, places: Any) -> Any:
    """Return the entries of a table by the lowest five bits of each half."""
    return called(builder, "llvm.x86.avx512.permvar.hi.512", _HALVES, [table, places])


def _less(builder: Any, levels: Column, zeros: Column) -> Column:
    """Return levels less zero points as float32."""
    return [
        builder.sitofp(builder.sub(level, zero), FLOATS) for level, zero in zip(levels, zeros, strict=True)
    ]


def _load(builder: Any, pointer: Any, kind: Any, number: int = 0) -> Any:
    """Load the nth value of a type from a pointer on."""
    pointer = builder.bitcast(pointer, kind.as_pointer())
    return builder.load(builder.gep(pointer, [ir.Constant(I64, number)]), align=1)


def _words(value: int) -> Any:
    return ir.Constant(WORDS, [value] * LANES)


def _halves(value: int) -> Any:
    return ir.Constant(_HALVES, [value] * _HALVES.count)
