"""What CPU kernels need beyond Numba: bfloat16 as bits, a small matrix product held in registers, a fast exp.

Kernels see pointers, and nothing is checked: the ops do that. Sums may be reordered, but by their length alone: a
row has the same bits whatever is beside it.
"""

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from kernels.threads import REORDERING, Pointer, inlined

# Floats of a register of AVX512, which narrower machines take two or four for.
LANES = 16
# Rows of a tile: as many as leave registers for what they are multiplied with.
ROWS_OF_ONE_REGISTER = 8
ROWS_OF_FOUR_REGISTERS = 6

_F32, _I8, _I16, _I32, _I64 = ir.FloatType(), *(ir.IntType(bits) for bits in (8, 16, 32, 64))


def _pointer_to(kind: Any) -> Any:
    @intrinsic
    def pointer(_context: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

        return types.CPointer(kind)(address), generate

    return pointer


# From the address of a tensor's first element. Bfloat16, which neither NumPy nor Numba has, is kept as uint16.
float32_at, bfloat16_at = _pointer_to(types.float32), _pointer_to(types.uint16)
int64_at, uint8_at = _pointer_to(types.int64), _pointer_to(types.uint8)


@intrinsic
def load(_context: Any, pointer: Any, index: Any) -> Any:  # noqa: ARG001
    """Return an element as float32."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _load(builder, builder.gep(arguments[0], [arguments[1]]), 1)

    return types.float32(pointer, types.intp), generate


@intrinsic
def store(_context: Any, pointer: Any, index: Any, value: Any) -> Any:  # noqa: ARG001
    """Store a float32, rounded to nearest even where the array holds bfloat16."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer, index, value = arguments
        _store(builder, value, builder.gep(pointer, [index]))
        return context.get_dummy_value()

    return types.void(pointer, types.intp, types.float32), generate


@intrinsic
def store_level(_context: Any, pointer: Any, index: Any, value: Any) -> Any:  # noqa: ARG001
    """Store a float32 in 0..255 as uint8, without its fraction."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer, index, value = arguments
        level = builder.trunc(builder.fptosi(value, _I32), _I8)
        builder.store(level, builder.gep(pointer, [index]))
        return context.get_dummy_value()

    return types.void(pointer, types.intp, types.float32), generate


@intrinsic
def maximum(_context: Any, first: Any, second: Any) -> Any:  # noqa: ARG001
    """Return the larger float32, or NaN if one is; unlike `max`, it lets a loop be vectorized."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        function_type = ir.FunctionType(_F32, [_F32, _F32])
        function = cgutils.get_or_insert_function(builder.module, function_type, "llvm.maximum.f32")
        return builder.call(function, arguments)

    return types.float32(types.float32, types.float32), generate


@intrinsic
def _power_of_two(_context: Any, exponent: Any) -> Any:  # noqa: ARG001
    """Return 2**exponent for a whole float32 in -126..127."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        biased = builder.add(builder.fptosi(arguments[0], _I32), ir.Constant(_I32, 127))
        return builder.bitcast(builder.shl(biased, ir.Constant(_I32, 23)), _F32)

    return types.float32(types.float32), generate


@numba.njit(inline="always", error_model="numpy", fastmath=REORDERING)
def exp(x: float) -> float:
    """Return e**x in float32 to 2 units in the last place, for x in -87..88 and clamped to it.

    Range reduction by log(2) in two parts, then a polynomial of degree 7: Cephes' `expf` (Moshier, 1992).
    """
    x = np.float32(-87.0) if x < np.float32(-87.0) else x
    x = np.float32(88.0) if x > np.float32(88.0) else x
    power = np.floor(x * np.float32(1.44269504) + np.float32(0.5))
    rest = x - power * np.float32(0.693359375) - power * np.float32(-2.12194440e-4)
    total = np.float32(1.9875691500e-4)
    total = total * rest + np.float32(1.3981999507e-3)
    total = total * rest + np.float32(8.3334519073e-3)
    total = total * rest + np.float32(4.1665795894e-2)
    total = total * rest + np.float32(1.6666665459e-1)
    total = total * rest + np.float32(5.0000001201e-1)
    total = total * rest * rest + rest + np.float32(1.0)
    return total * _power_of_two(power)


@numba.njit(inline="always", error_model="numpy", fastmath=REORDERING)
def tanh(x: float) -> float:
    """Return the hyperbolic tangent in float32, to about 1e-6."""
    return np.float32(1.0) - np.float32(2.0) / (exp(np.float32(2.0) * x) + np.float32(1.0))


@inlined
def tile_rows(num_columns: int) -> int:
    """Return how many rows `multiply_tile` takes at once."""
    return ROWS_OF_ONE_REGISTER if num_columns < 4 * LANES else ROWS_OF_FOUR_REGISTERS


@inlined
def multiply_tile(
    num_rows: int,
    num_columns: int,
    depth: int,
    out: Pointer,
    out_start: int,
    out_stride: int,
    left: Pointer,
    left_start: int,
    left_stride: int,
    right: Pointer,
    right_start: int,
    right_stride: int,
) -> None:
    """Add `left @ right` into `out`, for at most `tile_rows(num_columns)` rows.

    Each matrix is given by its first element and the distance between rows: `out` [num_rows, num_columns] and
    `left` [num_rows, depth] float32, `right` [depth, num_columns] float32 or bfloat16. An element is two sums
    of fused multiply-adds, over even and over odd steps of `depth`, or one sum for columns that come 64 at a
    time.
    """
    column = 0
    while num_columns - column >= 4 * LANES:
        _tile(
            num_rows,
            4,
            depth,
            out,
            out_start + column,
            out_stride,
            left,
            left_start,
            left_stride,
            right,
            right_start + column,
            right_stride,
        )
        column += 4 * LANES
    while num_columns - column >= LANES:
        _tile(
            num_rows,
            1,
            depth,
            out,
            out_start + column,
            out_stride,
            left,
            left_start,
            left_stride,
            right,
            right_start + column,
            right_stride,
        )
        column += LANES
    while column < num_columns:
        _tile(
            num_rows,
            0,
            depth,
            out,
            out_start + column,
            out_stride,
            left,
            left_start,
            left_stride,
            right,
            right_start + column,
            right_stride,
        )
        column += 1


@intrinsic
def _tile(
    _context: Any,
    num_rows: Any,
    num_registers: Any,
    depth: Any,
    out: Any,
    out_start: Any,
    out_stride: Any,
    left: Any,
    left_start: Any,
    left_stride: Any,
    right: Any,
    right_start: Any,
    right_stride: Any,
) -> Any:
    """As `multiply_tile`, for a literal number of registers of columns; 0 is a single column."""
    if not isinstance(num_registers, types.IntegerLiteral):
        return None
    registers, index = num_registers.literal_value, types.intp
    most_rows = ROWS_OF_FOUR_REGISTERS if registers == 4 else ROWS_OF_ONE_REGISTER
    columns, chains = registers * LANES or 1, 1 if registers == 4 else 2
    signature = types.void(
        index, num_registers, index, out, index, index, left, index, index, right, index, index
    )

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        rows, _, depth, out, out_start, out_stride, left, left_start, left_stride, *rest = arguments
        right, right_start, right_stride = rest
        lanes = _lanes(_F32, columns)
        name = f"llvm.fma.v{columns}f32" if columns > 1 else "llvm.fma.f32"
        fused = cgutils.get_or_insert_function(builder.module, ir.FunctionType(lanes, [lanes] * 3), name)
        out_at = builder.gep(out, [out_start])
        left_at = builder.gep(left, [left_start])
        right_at = builder.gep(right, [right_start])
        end = builder.append_basic_block("tile_end")
        switch = builder.switch(rows, end)
        for count in range(1, most_rows + 1):
            block = builder.append_basic_block(f"tile_{count}")
            switch.add_case(ir.Constant(rows.type, count), block)
            builder.position_at_end(block)
            targets, lefts = (
                [builder.gep(at, [builder.mul(stride, ir.Constant(_I64, row))]) for row in range(count)]
                for at, stride in ((out_at, out_stride), (left_at, left_stride))
            )
            # As allocas, which LLVM turns into registers.
            sums = [[cgutils.alloca_once(builder, lanes) for _ in range(count)] for _ in range(chains)]
            for total in (total for chain in sums for total in chain):
                builder.store(ir.Constant(lanes, None), total)

            def add_product(step: Any, chain: list[Any], lefts: list[Any] = lefts) -> None:
                line = _load(builder, builder.gep(right_at, [builder.mul(step, right_stride)]), columns)
                for source, total in zip(lefts, chain, strict=True):
                    value = _broadcast(builder, builder.load(builder.gep(source, [step])), lanes)
                    builder.store(builder.call(fused, [value, line, builder.load(total)]), total)

            with cgutils.for_range(builder, builder.udiv(depth, ir.Constant(_I64, chains))) as loop:
                first = builder.mul(loop.index, ir.Constant(_I64, chains))
                for number, chain in enumerate(sums):
                    add_product(builder.add(first, ir.Constant(_I64, number)), chain)
            if chains == 2:
                with builder.if_then(builder.trunc(depth, ir.IntType(1))):
                    add_product(builder.sub(depth, ir.Constant(_I64, 1)), sums[0])
            for row, target in enumerate(targets):
                total = _load(builder, target, columns)
                for chain in sums:
                    total = builder.fadd(total, builder.load(chain[row]))
                _store(builder, total, target)
            builder.branch(end)
        builder.position_at_end(end)
        return context.get_dummy_value()

    return signature, generate


@inlined
def copy(count: int, source: Pointer, source_start: int, target: Pointer, target_start: int) -> None:
    """Copy elements that lie side by side."""
    index = 0
    while count - index >= LANES:
        _copy(LANES, source, source_start + index, target, target_start + index)
        index += LANES
    while index < count:
        _copy(1, source, source_start + index, target, target_start + index)
        index += 1


@intrinsic
def _copy(_context: Any, count: Any, source: Any, source_start: Any, target: Any, target_start: Any) -> Any:
    """As `copy`, for a literal count."""
    if not isinstance(count, types.IntegerLiteral):
        return None
    number = count.literal_value

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        _, source, source_start, target, target_start = arguments
        value = _load(builder, builder.gep(source, [source_start]), number)
        _store(builder, value, builder.gep(target, [target_start]))
        return context.get_dummy_value()

    return types.void(count, source, types.intp, target, types.intp), generate


@inlined
def rotate(
    half: int,
    source: Pointer,
    source_start: int,
    angles: Pointer,
    angles_start: int,
    target: Pointer,
    target_start: int,
    target_stride: int,
) -> None:
    """Rotate the pairs (x[i], x[half + i]) of `source` into elements of `target`, `target_stride` apart.

    `angles` holds `half` cosines, then as many sines.
    """
    index = 0
    while half - index >= LANES:
        _rotate(
            LANES,
            half,
            source,
            source_start + index,
            angles,
            angles_start + index,
            target,
            target_start + index * target_stride,
            target_stride,
        )
        index += LANES
    while index < half:
        _rotate(
            1,
            half,
            source,
            source_start + index,
            angles,
            angles_start + index,
            target,
            target_start + index * target_stride,
            target_stride,
        )
        index += 1


@intrinsic
def _rotate(
    _context: Any,
    num_pairs: Any,
    half: Any,
    source: Any,
    source_start: Any,
    angles: Any,
    angles_start: Any,
    target: Any,
    target_start: Any,
    target_stride: Any,
) -> Any:
    """As `rotate`, for a literal number of pairs."""
    if not isinstance(num_pairs, types.IntegerLiteral):
        return None
    count, index = num_pairs.literal_value, types.intp
    signature = types.void(num_pairs, index, source, index, angles, index, target, index, index)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, half, source, source_start, angles, angles_start, target, target_start, stride = arguments

        def halves(pointer: Any, start: Any) -> list[Any]:
            at = builder.gep(pointer, [start])
            return [_load(builder, one, count) for one in (at, builder.gep(at, [half]))]

        (first, second), (cos, sin) = halves(source, source_start), halves(angles, angles_start)
        turned = (
            builder.fsub(builder.fmul(first, cos), builder.fmul(second, sin)),
            builder.fadd(builder.fmul(second, cos), builder.fmul(first, sin)),
        )
        at = builder.gep(target, [target_start])
        with builder.if_else(builder.icmp_signed("==", stride, ir.Constant(_I64, 1))) as (dense, spread):
            with dense:
                for offset, values in zip((ir.Constant(_I64, 0), half), turned, strict=True):
                    _store(builder, values, builder.gep(at, [offset]))
            with spread:
                for offset, values in zip((ir.Constant(_I64, 0), half), turned, strict=True):
                    for lane in range(count):
                        value = (
                            builder.extract_element(values, ir.Constant(_I32, lane)) if count > 1 else values
                        )
                        place = builder.mul(builder.add(offset, ir.Constant(_I64, lane)), stride)
                        _store(builder, value, builder.gep(at, [place]))
        return context.get_dummy_value()

    return signature, generate


def _lanes(lane: Any, count: int) -> Any:
    return lane if count == 1 else ir.VectorType(lane, count)


def _constant(kind: Any, value: int) -> Any:
    return ir.Constant(kind, [value] * kind.count if isinstance(kind, ir.VectorType) else value)


def _load(builder: Any, pointer: Any, count: int) -> Any:
    """Return `count` neighbouring elements as float32."""
    element = pointer.type.pointee
    pointer = builder.bitcast(pointer, _lanes(element, count).as_pointer())
    value = builder.load(pointer, align=2 if element == _I16 else 4)
    if element == _F32:
        return value
    words = _lanes(_I32, count)
    return builder.bitcast(builder.shl(builder.zext(value, words), _constant(words, 16)), _lanes(_F32, count))


def _store(builder: Any, value: Any, pointer: Any) -> None:
    """Store float32, one or a vector, at neighbouring elements."""
    count = value.type.count if isinstance(value.type, ir.VectorType) else 1
    element = pointer.type.pointee
    if element == _I16:
        words = _lanes(_I32, count)
        bits = builder.bitcast(value, words)
        last = builder.and_(builder.lshr(bits, _constant(words, 16)), _constant(words, 1))
        bits = builder.add(bits, builder.add(last, _constant(words, 0x7FFF)))
        value = builder.trunc(builder.lshr(bits, _constant(words, 16)), _lanes(_I16, count))
    pointer = builder.bitcast(pointer, _lanes(element, count).as_pointer())
    builder.store(value, pointer, align=2 if element == _I16 else 4)


def _broadcast(builder: Any, value: Any, lanes: Any) -> Any:
    if not isinstance(lanes, ir.VectorType):
        return value
    one = builder.insert_element(ir.Constant(lanes, ir.Undefined), value, ir.Constant(_I32, 0))
    zeros = ir.Constant(ir.VectorType(_I32, lanes.count), [0] * lanes.count)
    return builder.shuffle_vector(one, ir.Constant(lanes, ir.Undefined), zeros)
