"""Emits a small matrix product whose sums stay in registers."""

from functools import cache
from itertools import product
from operator import itemgetter
from typing import Any, NamedTuple

from llvmlite import ir
from numba import types
from numba.core import cgutils

from kernels.compiled import Pointer, has_feature, inlined
from kernels.simd import F32, I32, I64, LANES, intrinsic, lanes_of, load_lanes, store_lanes

# With AVX512 there are 32 registers of LANES, without it 16 of a half, or 32 of a quarter. A wide tile, of so
# many LANES of columns and at most so many rows, and a narrow tile, of LANES, leave enough for the factors.
# A narrow tile has one sum for each element, or two, where it would wait for one.
_REGISTER, _WIDE, _WIDE_ROWS, _NARROW_ROWS, NARROW_SUMS = (
    (LANES, 4, 6, 8, 2) if has_feature("avx512f") else (LANES // 2, 2, 3, 6, 1)
)
TILE_ROWS = 6  # of any number of columns


@inlined
def tile_rows(num_columns: int) -> int:
    """Return the number of rows that `multiply_tile` takes at once."""
    return _NARROW_ROWS if num_columns < 4 * LANES else TILE_ROWS


class Matrix(NamedTuple):
    """A matrix in memory: its first element and the distance between rows, whose elements are contiguous."""

    data: Pointer
    start: int
    stride: int


@inlined
def multiply_tile(
    num_rows: int, num_columns: int, depth: int, out: Matrix, left: Matrix, right: Matrix
) -> None:
    """Add `left @ right` into `out`, for at most `tile_rows(num_columns)` rows.

    `out` [num_rows, num_columns] and `left` [num_rows, depth] are float32, `right` [depth, num_columns] is
    float32, bfloat16 or int8. With AVX512, columns in a run of 64 have one sum of fused multiply-adds per
    element; others have two, over even and odd steps of `depth`. Without, all have one. So an element has the
    same bits with any number of rows.
    """
    column = 0
    if num_rows <= _WIDE_ROWS:
        while num_columns - column >= _WIDE * LANES:
            _tile(num_rows, _WIDE, depth, _from_column(out, column), left, _from_column(right, column))
            column += _WIDE * LANES
    while num_columns - column >= LANES:
        _tile(num_rows, 1, depth, _from_column(out, column), left, _from_column(right, column))
        column += LANES
    while column < num_columns:
        _tile(num_rows, 0, depth, _from_column(out, column), left, _from_column(right, column))
        column += 1


@inlined
def _from_column(matrix: Matrix, column: int) -> Matrix:
    return Matrix(matrix.data, matrix.start + column, matrix.stride)


@intrinsic
def _tile(_context: Any, num_rows: Any, num_lanes: Any, depth: Any, out: Any, left: Any, right: Any) -> Any:
    """Do the work of `multiply_tile` for a number of columns known at compile time, in LANES.

    0 means a single column.
    """
    if not isinstance(num_lanes, types.IntegerLiteral):
        return None
    wide, index = num_lanes.literal_value == _WIDE, types.intp
    most_rows, chains = (_WIDE_ROWS, 1) if wide else (_NARROW_ROWS, NARROW_SUMS)
    columns = num_lanes.literal_value * LANES or 1
    signature = types.void(index, num_lanes, index, out, left, right)

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        rows, _, depth, *matrices = arguments
        out, left, (right, right_start, right_stride) = (
            cgutils.unpack_tuple(builder, matrix) for matrix in matrices
        )
        end = builder.append_basic_block("tile_end")
        switch = builder.switch(rows, end)
        for count in range(1, most_rows + 1):
            block = builder.append_basic_block(f"tile_{count}")
            switch.add_case(ir.Constant(rows.type, count), block)
            builder.position_at_end(block)
            targets, lefts = (
                [
                    builder.gep(pointer, [builder.add(start, builder.mul(stride, ir.Constant(I64, row)))])
                    for row in range(count)
                ]
                for pointer, start, stride in (out, left)
            )
            line = builder.gep(right, [right_start])
            _add_rows(builder, targets, lefts, line, right_stride, depth, columns, chains)
            builder.branch(end)
        builder.position_at_end(end)
        return context.get_dummy_value()

    return signature, generate


def _add_rows(
    builder: Any,
    targets: list[Any],
    lefts: list[Any],
    right: Any,
    right_stride: Any,
    depth: Any,
    columns: int,
    chains: int,
) -> None:
    """Emit the product for all `targets` rows, each sum in `chains` parts."""
    count = min(columns, _REGISTER)
    lanes, firsts = lanes_of(F32, count), range(0, columns, count)
    name = f"llvm.fma.v{count}f32" if count > 1 else "llvm.fma.f32"
    fused = cgutils.get_or_insert_function(builder.module, ir.FunctionType(lanes, [lanes] * 3), name)
    # By chain, register and row. LLVM turns these allocas into registers.
    sums = [[[cgutils.alloca_once(builder, lanes) for _ in targets] for _ in firsts] for _ in range(chains)]
    for total in (total for chain in sums for register in chain for total in register):
        builder.store(ir.Constant(lanes, None), total)

    def add_product(step: Any, chain: list[list[Any]]) -> None:
        line = builder.gep(right, [builder.mul(step, right_stride)])
        _add_product(builder, fused, [builder.gep(one, [step]) for one in lefts], line, chain)

    with cgutils.for_range(builder, builder.udiv(depth, ir.Constant(I64, chains))) as loop:
        first = builder.mul(loop.index, ir.Constant(I64, chains))
        for number, chain in enumerate(sums):
            add_product(builder.add(first, ir.Constant(I64, number)), chain)
    if chains == 2:
        with builder.if_then(builder.trunc(depth, ir.IntType(1))):
            add_product(builder.sub(depth, ir.Constant(I64, 1)), sums[0])
    for row, target in enumerate(targets):
        for register, first in enumerate(firsts):
            place = builder.gep(target, [ir.Constant(I64, first)])
            total = load_lanes(builder, place, count)
            for chain in sums:
                total = builder.fadd(total, builder.load(chain[register][row]))
            store_lanes(builder, total, place)


def _add_product(builder: Any, fused: Any, lefts: list[Any], line: Any, sums: list[list[Any]]) -> None:
    """Emit one step: a factor of each row by the registers of a line, added to `sums` by register and row."""
    lanes = fused.args[0].type
    count = lanes.count if isinstance(lanes, ir.VectorType) else 1

    @cache
    def factor(row: int) -> Any:
        return _broadcast(builder, builder.load(lefts[row]), lanes)

    @cache
    def values(register: int) -> Any:
        return load_lanes(builder, builder.gep(line, [ir.Constant(I64, register * count)]), count)

    # Of rows and registers, the fewer stay loaded, while the more are loaded one after the other.
    pairs = product(range(len(lefts)), range(len(sums)))
    for row, register in sorted(pairs, key=itemgetter(0 if len(sums) < len(lefts) else 1)):
        total = sums[register][row]
        builder.store(builder.call(fused, [factor(row), values(register), builder.load(total)]), total)


def _broadcast(builder: Any, value: Any, lanes: Any) -> Any:
    if not isinstance(lanes, ir.VectorType):
        return value
    one = builder.insert_element(ir.Constant(lanes, ir.Undefined), value, ir.Constant(I32, 0))
    zeros = ir.Constant(ir.VectorType(I32, lanes.count), [0] * lanes.count)
    return builder.shuffle_vector(one, ir.Constant(lanes, ir.Undefined), zeros)
