"""Emits the quantization of a row's vectors, which Numba leaves scalar in part."""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from kernels.compiled import Pointer
from kernels.simd import F32, I32, I64, LANES, intrinsic, load_lanes

_FLOATS, _WORDS, _BYTES = (ir.VectorType(kind, LANES) for kind in (F32, I32, ir.IntType(8)))
_ABSOLUTE = 0x7FFFFFFF  # of a float32's bits


@intrinsic
def largest_of(_context: Any, x: Pointer, start: Any, count: Any) -> Any:
    """Return the largest absolute value of `count` float32 elements, a multiple of LANES, or NaN if one is.

    As an integer, the absolute value of NaN is larger than every number.
    """

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        x, start, count = arguments
        first = builder.bitcast(builder.gep(x, [start]), _WORDS.as_pointer())
        largest = cgutils.alloca_once(builder, _WORDS)
        builder.store(ir.Constant(_WORDS, [0] * LANES), largest)
        larger = _function(builder, f"llvm.umax.v{LANES}i32", _WORDS, [_WORDS, _WORDS])
        with cgutils.for_range(builder, builder.udiv(count, ir.Constant(I64, LANES))) as loop:
            bits = builder.load(builder.gep(first, [loop.index]), align=4)
            bits = builder.and_(bits, ir.Constant(_WORDS, [_ABSOLUTE] * LANES))
            builder.store(builder.call(larger, [builder.load(largest), bits]), largest)
        reduce = _function(builder, f"llvm.vector.reduce.umax.v{LANES}i32", I32, [_WORDS])
        return builder.bitcast(builder.call(reduce, [builder.load(largest)]), F32)

    return types.float32(x, types.intp, types.intp), generate


@intrinsic
def store_levels(
    _context: Any, levels: Pointer, levels_start: Any, x: Pointer, start: Any, step: Any, zero: Any
) -> Any:
    """Store `x * step + zero` of LANES elements as uint8; fractions are cut off."""

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        levels, levels_start, x, start, step, zero = arguments
        value = load_lanes(builder, builder.gep(x, [start]), LANES)
        value = builder.fadd(builder.fmul(value, _spread(builder, step)), _spread(builder, zero))
        target = builder.bitcast(builder.gep(levels, [levels_start]), _BYTES.as_pointer())
        builder.store(builder.trunc(builder.fptosi(value, _WORDS), _BYTES), target, align=1)
        return context.get_dummy_value()

    index = types.intp
    return types.void(levels, index, x, index, types.float32, types.float32), generate


def _function(builder: Any, name: str, result: Any, arguments: list[Any]) -> Any:
    return cgutils.get_or_insert_function(builder.module, ir.FunctionType(result, arguments), name)


def _spread(builder: Any, value: Any) -> Any:
    one = builder.insert_element(ir.Constant(_FLOATS, ir.Undefined), value, ir.Constant(I32, 0))
    return builder.shuffle_vector(one, ir.Constant(_FLOATS, ir.Undefined), ir.Constant(_WORDS, [0] * LANES))
