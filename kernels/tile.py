"""Emits a small matrix product whose sums stay in registers."""

from typing import Any, NamedTuple

from llvmlite import ir
from numba import types
from numba.core import cgutils

from kernels.compiled import Pointer, inlined
from kernels.simd import F32, I32, I64, LANES, intrinsic, lanes_of, load_lanes, store_lanes

# The most rows in a tile that leave enough registers for the other factors.
ROWS_OF_ONE_REGISTER = 8
ROWS_OF_FOUR_REGISTERS = 6


@inlined
def tile_rows(num_columns: int) -> int:
    """Return the number of rows that `multiply_tile` takes at once."""
    return ROWS_OF_ONE_REGISTER if num_columns < 4 * LANES else ROWS_OF_FOUR_REGISTERS


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
    float32 or bfloat16. Columns in a run of 64 have one sum of fused multiply-adds per element; others have
    two, over even and over odd steps of `depth`.
    """
    column = 0
    while num_columns - column >= 4 * LANES:
        _tile(num_rows, 4, depth, _from_column(out, column), left, _from_column(right, column))
        column += 4 * LANES
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
def _tile(
    _context: Any, num_rows: Any, num_registers: Any, depth: Any, out: Any, left: Any, right: Any
) -> Any:
    """Do the work of `multiply_tile` for a number of column registers known at compile time.

    0 registers mean a single column.
    """
    if not isinstance(num_registers, types.IntegerLiteral):
        return None
    registers, index = num_registers.literal_value, types.intp
    most_rows = ROWS_OF_FOUR_REGISTERS if registers == 4 else ROWS_OF_ONE_REGISTER
    columns, chains = registers * LANES or 1, 1 if registers == 4 else 2
    signature = types.void(index, num_registers, index, out, left, right)

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
    lanes = lanes_of(F32, columns)
    name = f"llvm.fma.v{columns}f32" if columns > 1 else "llvm.fma.f32"
    fused = cgutils.get_or_insert_function(builder.module, ir.FunctionType(lanes, [lanes] * 3), name)
    # LLVM turns these allocas into registers.
    sums = [[cgutils.alloca_once(builder, lanes) for _ in targets] for _ in range(chains)]
    for total in (total for chain in sums for total in chain):
        builder.store(ir.Constant(lanes, None), total)

    def add_product(step: Any, chain: list[Any]) -> None:
        line = load_lanes(builder, builder.gep(right, [builder.mul(step, right_stride)]), columns)
        for source, total in zip(lefts, chain, strict=True):
            value = _broadcast(builder, builder.load(builder.gep(source, [step])), lanes)
            builder.store(builder.call(fused, [value, line, builder.load(total)]), total)

    with cgutils.for_range(builder, builder.udiv(depth, ir.Constant(I64, chains))) as loop:
        first = builder.mul(loop.index, ir.Constant(I64, chains))
        for number, chain in enumerate(sums):
            add_product(builder.add(first, ir.Constant(I64, number)), chain)
    if chains == 2:
        with builder.if_then(builder.trunc(depth, ir.IntType(1))):
            add_product(builder.sub(depth, ir.Constant(I64, 1)), sums[0])
    for row, target in enumerate(targets):
        total = load_lanes(builder, target, columns)
        for chain in sums:
            total = builder.fadd(total, builder.load(chain[row]))
        store_lanes(builder, total, target)


def _broadcast(builder: Any, value: Any, lanes: Any) -> Any:
    if not isinstance(lanes, ir.VectorType):
        return value
    one = builder.insert_element(ir.Constant(lanes, ir.Undefined), value, ir.Constant(I32, 0))
    zeros = ir.Constant(ir.VectorType(I32, lanes.count), [0] * lanes.count)
    return builder.shuffle_vector(one, ir.Constant(lanes, ir.Undefined), zeros)
