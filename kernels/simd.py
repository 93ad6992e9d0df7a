"""What CPU kernels need beyond Numba: bfloat16 as bits, a small matrix product held in registers, a fast exp.

A kernel is a function over flat arrays, compiled on its first call and kept on disk. Floating-point sums may
be reordered, but by their length alone: a row has the same bits whatever is beside it.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import numba
import numpy as np
import torch
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from torch import Tensor

_Function = TypeVar("_Function", bound=Callable[..., Any])

# Registers the accumulators of one tile may take, of the 32 that AVX512 and NEON have, 64 bytes each.
_TILE_REGISTERS = 24
_REGISTER_FLOATS = 16
MAX_TILE_ROWS = 8
# Below this, waking another thread costs more than it saves: an estimate from timings on 2 cores.
_ELEMENTS_WORTH_A_THREAD = 1 << 15
# Not "nnan" and "ninf": a NaN must come out as one.
_REORDERING = {"contract", "reassoc", "nsz", "arcp"}

_F32, _I16, _I32, _I64 = ir.FloatType(), ir.IntType(16), ir.IntType(32), ir.IntType(64)


def kernel(function: _Function) -> _Function:
    """Compile a function for one thread, without the interpreter's lock."""
    compiled: _Function = numba.njit(nogil=True, cache=True, error_model="numpy", fastmath=_REORDERING)(
        function
    )
    return compiled


def parallel_kernel(function: _Function) -> _Function:
    """Compile a function whose outermost loop is a `numba.prange`."""
    compiled: _Function = numba.njit(
        nogil=True, cache=True, error_model="numpy", fastmath=_REORDERING, parallel=True
    )(function)
    return compiled


def set_num_threads(count: int) -> None:
    """Let parallel kernels called from this thread use so many threads, at most one a core."""
    numba.set_num_threads(min(count, numba.config.NUMBA_NUM_THREADS))


def num_threads() -> int:
    """Return how many threads a parallel kernel called from this thread uses."""
    count: int = numba.get_num_threads()
    return count


def parts(num_elements: int) -> int:
    """Return over how many threads to spread one pass over so many elements."""
    return num_threads() if num_elements >= _ELEMENTS_WORTH_A_THREAD else 1


def flat(tensor: Tensor) -> np.ndarray:
    """Return a dense tensor's memory as one axis; bfloat16, which NumPy lacks, as uint16."""
    tensor = tensor.view(-1)
    array: np.ndarray = (tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor).numpy()
    return array


@intrinsic
def load(_context: Any, array: Any, index: Any) -> Any:  # noqa: ARG001
    """Return an element as float32. Nothing is checked: a negative index is not from the end."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        value = builder.load(_address(context, builder, signature.args[0], *arguments))
        return _widened(builder, value) if signature.args[0].dtype == types.uint16 else value

    return types.float32(array, types.intp), generate


@intrinsic
def store(_context: Any, array: Any, index: Any, value: Any) -> Any:  # noqa: ARG001
    """Store a float32, rounded to nearest even where the array holds bfloat16. Nothing is checked."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array, index, value = arguments
        if signature.args[0].dtype == types.uint16:
            value = _narrowed(builder, value)
        builder.store(value, _address(context, builder, signature.args[0], array, index))
        return context.get_dummy_value()

    return types.void(array, types.intp, types.float32), generate


@intrinsic
def store_level(_context: Any, array: Any, index: Any, value: Any) -> Any:  # noqa: ARG001
    """Store a float32 in 0..255 as uint8, without its fraction. Nothing is checked."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array, index, value = arguments
        level = builder.trunc(builder.fptosi(value, _I32), ir.IntType(8))
        builder.store(level, _address(context, builder, signature.args[0], array, index))
        return context.get_dummy_value()

    return types.void(array, types.intp, types.float32), generate


@intrinsic
def _power_of_two(_context: Any, exponent: Any) -> Any:
    """Return 2**exponent for a whole float32 in -126..127."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        biased = builder.add(builder.fptosi(arguments[0], _I32), ir.Constant(_I32, 127))
        return builder.bitcast(builder.shl(biased, ir.Constant(_I32, 23)), _F32)

    return types.float32(types.float32), generate


@numba.njit(inline="always")
def share(count: int, part: int, num_parts: int) -> tuple[int, int]:
    """Return the bounds of one part of `count` rows."""
    # A prange counts in uint64, whose product with an int64 is a float in Numba.
    number = np.int64(part)
    return number * count // num_parts, (number + 1) * count // num_parts


@numba.njit(inline="always", error_model="numpy", fastmath=_REORDERING)
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


@numba.njit(inline="always", error_model="numpy", fastmath=_REORDERING)
def tanh(x: float) -> float:
    """Return the hyperbolic tangent in float32, to about 1e-6."""
    return np.float32(1.0) - np.float32(2.0) / (exp(np.float32(2.0) * x) + np.float32(1.0))


@intrinsic
def maximum(_context: Any, first: Any, second: Any) -> Any:  # noqa: ARG001
    """Return the larger float32, or NaN if one is; unlike `max`, it keeps a loop over it vectorized."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        function_type = ir.FunctionType(_F32, [_F32, _F32])
        function = cgutils.get_or_insert_function(builder.module, function_type, "llvm.maximum.f32")
        return builder.call(function, arguments)

    return types.float32(types.float32, types.float32), generate


@intrinsic
def multiply_tile(
    _context: Any,
    num_rows: Any,
    num_columns: Any,
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
    """Add `left @ right` into `out`, a row of accumulators held in registers for each of `num_rows`.

    Arrays are flat, each matrix given by its first element and the distance between rows: `out`
    [num_rows, num_columns] and `left` [num_rows, depth] float32, `right` [depth, num_columns] float32 or
    bfloat16. `num_columns` is a constant of the compiled function, `num_rows` at most `tile_rows` of it. An
    element is one chain of fused multiply-adds in the order of `depth`, or, where a row is one register, two
    chains over every other step, so that few rows do not wait for each sum.
    """
    if not isinstance(num_columns, types.IntegerLiteral):
        return None
    columns = num_columns.literal_value
    index = types.intp
    signature = types.void(
        index, num_columns, index, out, index, index, left, index, index, right, index, index
    )

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        rows, _, depth, out, out_start, out_stride, left, left_start, left_stride, *last = arguments
        right, right_start, right_stride = last
        vector = ir.VectorType(_F32, columns)
        chains = 2 if columns <= _REGISTER_FLOATS else 1
        fused = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(vector, [vector] * 3), f"llvm.fma.v{columns}f32"
        )

        out_at = _address(context, builder, signature.args[3], out, out_start)
        left_at = _address(context, builder, signature.args[6], left, left_start)
        right_at = _address(context, builder, signature.args[9], right, right_start)
        end = builder.append_basic_block("tile_end")
        switch = builder.switch(rows, end)
        for count in range(1, tile_rows(columns) + 1):
            block = builder.append_basic_block(f"tile_{count}")
            switch.add_case(ir.Constant(rows.type, count), block)
            builder.position_at_end(block)
            targets = [
                builder.bitcast(
                    builder.gep(out_at, [builder.mul(out_stride, ir.Constant(_I64, row))]),
                    vector.as_pointer(),
                )
                for row in range(count)
            ]
            lefts = [
                builder.gep(left_at, [builder.mul(left_stride, ir.Constant(_I64, row))])
                for row in range(count)
            ]
            # As allocas, which LLVM turns into registers.
            sums = [[cgutils.alloca_once(builder, vector) for _ in range(count)] for _ in range(chains)]
            for chain in sums:
                for total in chain:
                    builder.store(ir.Constant(vector, None), total)

            def add_product(step: Any, chain: list[Any], lefts: list[Any] = lefts) -> None:
                line = builder.gep(right_at, [builder.mul(step, right_stride)])
                loaded = _load_line(builder, line, vector, signature.args[9].dtype)
                for source, total in zip(lefts, chain, strict=True):
                    value = _broadcast(builder, builder.load(builder.gep(source, [step])), vector)
                    builder.store(builder.call(fused, [value, loaded, builder.load(total)]), total)

            with cgutils.for_range(builder, builder.udiv(depth, ir.Constant(_I64, chains))) as loop:
                first = builder.mul(loop.index, ir.Constant(_I64, chains))
                for number, chain in enumerate(sums):
                    add_product(builder.add(first, ir.Constant(_I64, number)), chain)
            if chains == 2:
                with builder.if_then(builder.trunc(depth, ir.IntType(1))):
                    add_product(builder.sub(depth, ir.Constant(_I64, 1)), sums[0])
            for row, target in enumerate(targets):
                total = builder.load(target, align=4)
                for chain in sums:
                    total = builder.fadd(total, builder.load(chain[row]))
                builder.store(total, target, align=4)
            builder.branch(end)
        builder.position_at_end(end)
        return context.get_dummy_value()

    return signature, generate


def tile_rows(num_columns: int) -> int:
    """Return how many rows a tile of so many columns may have."""
    registers = max(2, -(-num_columns // _REGISTER_FLOATS))
    return max(1, min(MAX_TILE_ROWS, _TILE_REGISTERS // registers))


def _address(context: Any, builder: Any, array_type: Any, array: Any, index: Any) -> Any:
    proxy = cgutils.create_struct_proxy(array_type)(context, builder, value=array)
    return builder.gep(proxy.data, [index])


def _lanes(lane: Any, like: Any) -> Any:
    """Return the type of one `lane`, or of as many as `like` has."""
    return ir.VectorType(lane, like.count) if isinstance(like, ir.VectorType) else lane


def _constant(kind: Any, value: int) -> Any:
    return ir.Constant(kind, [value] * kind.count if isinstance(kind, ir.VectorType) else value)


def _widened(builder: Any, halves: Any) -> Any:
    """Return bfloat16 bits, one or a vector of them, as float32."""
    words = _lanes(_I32, halves.type)
    bits = builder.shl(builder.zext(halves, words), _constant(words, 16))
    return builder.bitcast(bits, _lanes(_F32, halves.type))


def _narrowed(builder: Any, values: Any) -> Any:
    """Return float32, one or a vector of them, as bfloat16 bits, rounded to nearest even."""
    words = _lanes(_I32, values.type)
    bits = builder.bitcast(values, words)
    last = builder.and_(builder.lshr(bits, _constant(words, 16)), _constant(words, 1))
    bits = builder.add(bits, builder.add(last, _constant(words, 0x7FFF)))
    return builder.trunc(builder.lshr(bits, _constant(words, 16)), _lanes(_I16, values.type))


@intrinsic
def rotate(
    _context: Any,
    half: Any,
    source: Any,
    source_start: Any,
    angles: Any,
    angles_start: Any,
    target: Any,
    target_start: Any,
    target_stride: Any,
) -> Any:
    """Rotate the pairs (x[i], x[half + i]) of `source` into elements of `target` that lie `target_stride` apart.

    Arrays are flat; `angles` holds `half` cosines, then as many sines. `half` and `target_stride` are constants
    of the compiled function. Nothing is checked.
    """
    if not isinstance(half, types.IntegerLiteral) or not isinstance(target_stride, types.IntegerLiteral):
        return None
    count, stride = half.literal_value, target_stride.literal_value
    index = types.intp
    signature = types.void(half, source, index, angles, index, target, index, target_stride)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, source, source_start, angles, angles_start, target, target_start, _ = arguments
        vector = ir.VectorType(_F32, count)
        types_of = signature.args

        def halves_at(position: int, array: Any, start: Any) -> list[Any]:
            at = _address(context, builder, types_of[position], array, start)
            dtype = types_of[position].dtype
            return [
                _load_line(builder, builder.gep(at, [ir.Constant(_I64, offset)]), vector, dtype)
                for offset in (0, count)
            ]

        first, second = halves_at(1, source, source_start)
        cos, sin = halves_at(3, angles, angles_start)
        turned = (
            builder.fsub(builder.fmul(first, cos), builder.fmul(second, sin)),
            builder.fadd(builder.fmul(second, cos), builder.fmul(first, sin)),
        )
        at = _address(context, builder, types_of[5], target, target_start)
        for number, values in enumerate(turned):
            if types_of[5].dtype == types.uint16:
                values = _narrowed(builder, values)  # noqa: PLW2901
            begin = builder.gep(at, [ir.Constant(_I64, number * count * stride)])
            if stride == 1:
                builder.store(values, builder.bitcast(begin, values.type.as_pointer()), align=2)
                continue
            for element in range(count):
                value = builder.extract_element(values, ir.Constant(_I32, element))
                builder.store(value, builder.gep(begin, [ir.Constant(_I64, element * stride)]))
        return context.get_dummy_value()

    return signature, generate


def _load_line(builder: Any, line: Any, vector: Any, dtype: Any) -> Any:
    if dtype != types.uint16:
        return builder.load(builder.bitcast(line, vector.as_pointer()), align=4)
    halves = ir.VectorType(_I16, vector.count)
    return _widened(builder, builder.load(builder.bitcast(line, halves.as_pointer()), align=2))


def _broadcast(builder: Any, value: Any, vector: Any) -> Any:
    one = builder.insert_element(ir.Constant(vector, ir.Undefined), value, ir.Constant(_I32, 0))
    zeros = ir.Constant(ir.VectorType(_I32, vector.count), [0] * vector.count)
    return builder.shuffle_vector(one, ir.Constant(vector, ir.Undefined), zeros)
