"""Extends Numba for CPU kernels: memory access by pointers, bfloat16 as bits, loops that become vector code.

Nothing is checked here; the ops check their arguments. The order of a sum depends only on its length, so a
row has the same bits whatever is computed beside it.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic as untyped_intrinsic

from kernels.compiled import Pointer, inlined

# Compiled code calls the decorated function without its first parameter.
intrinsic: Any = untyped_intrinsic

# The floats in an AVX512 register; narrower machines use two or four registers for as many.
LANES = 16

# Floats that are kept free before memory for parts of a computation. Where a loop writes nearer than so many
# behind what it reads, its vector code gives way to scalar code, which may round otherwise.
MARGIN = 64

F32, _I8, _I16, I32, I64 = ir.FloatType(), *(ir.IntType(bits) for bits in (8, 16, 32, 64))
_ALIGNMENTS = {F32: 4, _I16: 2, _I8: 1}


def _pointer_to(kind: Any) -> Any:
    @intrinsic
    def pointer(_context: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

        return types.CPointer(kind)(address), generate

    return pointer


# Pointers from the address of a tensor's first element. Numba has no bfloat16, so its bits are uint16.
float32_at, bfloat16_at = _pointer_to(types.float32), _pointer_to(types.uint16)
float64_at = _pointer_to(types.float64)
int64_at, int32_at, int8_at, uint8_at, uint32_at = (
    _pointer_to(kind) for kind in (types.int64, types.int32, types.int8, types.uint8, types.uint32)
)


@intrinsic
def pointer_like(_context: Any, pointer: Any, address: Any) -> Any:
    """Return the pointer to an address, of the same type as another pointer."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[1], arguments[0].type)

    return pointer(pointer, types.int64), generate


@intrinsic
def call_at(_context: Any, address: Any, numbers: Any) -> Any:
    """Call what `kernels.compiled.entry` has compiled with the address of a tuple of int64 and pointers."""

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        address, packed = arguments
        items = cgutils.unpack_tuple(builder, packed)
        memory = cgutils.alloca_once(builder, I64, len(items))
        for index, item in enumerate(items):
            number = builder.ptrtoint(item, I64) if isinstance(item.type, ir.PointerType) else item
            builder.store(number, builder.gep(memory, [ir.Constant(I64, index)]))
        kind = ir.FunctionType(ir.VoidType(), [I64])
        function = builder.inttoptr(address, kind.as_pointer())
        builder.call(function, [builder.ptrtoint(memory, I64)])
        return context.get_dummy_value()

    return types.void(types.int64, numbers), generate


@intrinsic
def load(_context: Any, pointer: Any, index: Any) -> Any:
    """Return an element as float32."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return load_lanes(builder, builder.gep(arguments[0], [arguments[1]]), 1)

    return types.float32(pointer, types.intp), generate


@intrinsic
def store(_context: Any, pointer: Any, index: Any, value: Any) -> Any:
    """Store a float32, rounded to nearest even where the array holds bfloat16 or int8."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer, index, value = arguments
        store_lanes(builder, value, builder.gep(pointer, [index]))
        return context.get_dummy_value()

    return types.void(pointer, types.intp, types.float32), generate


@intrinsic
def rounded(_context: Any, value: Any) -> Any:
    """Return the nearest bfloat16 as float32, the even one of two."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        bits = bfloat16_bits(builder, arguments[0])
        return builder.bitcast(builder.shl(bits, ir.Constant(I32, 16)), F32)

    return types.float32(types.float32), generate


@intrinsic
def store_level(_context: Any, pointer: Any, index: Any, value: Any) -> Any:
    """Store a float32 in 0..255 as uint8; the fraction is cut off."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer, index, value = arguments
        level = builder.trunc(builder.fptosi(value, I32), _I8)
        builder.store(level, builder.gep(pointer, [index]))
        return context.get_dummy_value()

    return types.void(pointer, types.intp, types.float32), generate


@intrinsic
def _elements_of_line(_context: Any, pointer: Any) -> Any:
    """Return the number of elements in a cache line of 64 bytes."""

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        size = context.get_abi_sizeof(arguments[0].type.pointee)
        return ir.Constant(I64, 64 // size)

    return types.intp(pointer), generate


def fetch_line(builder: Any, address: Any, *, is_near: bool = True) -> None:
    """Emit the prefetch of an address's line into the nearest cache, or the next; nothing need be there."""
    kind = ir.FunctionType(ir.VoidType(), [ir.PointerType(_I8), I32, I32, I32])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    for_reading, keep, data = (ir.Constant(I32, value) for value in (0, 3 if is_near else 2, 1))
    builder.call(function, [builder.inttoptr(address, ir.PointerType(_I8)), for_reading, keep, data])


@intrinsic
def _prefetch(_context: Any, pointer: Any, index: Any) -> Any:
    """Prefetch the cache line of an element; the element need not exist."""

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        fetch_line(builder, builder.ptrtoint(builder.gep(arguments[0], [arguments[1]]), I64))
        return context.get_dummy_value()

    return types.void(pointer, types.intp), generate


@inlined
def prefetch(pointer: Pointer, start: int, count: int) -> None:
    """Prefetch contiguous elements into the cache without waiting for them."""
    for index in range(start, start + count, _elements_of_line(pointer)):
        _prefetch(pointer, index)


@intrinsic
def maximum(_context: Any, first: Any, second: Any) -> Any:
    """Return the larger float32, or NaN if one is; unlike `max`, it lets a loop be vectorized."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        function_type = ir.FunctionType(F32, [F32, F32])
        function = cgutils.get_or_insert_function(builder.module, function_type, "llvm.maximum.f32")
        return builder.call(function, arguments)

    return types.float32(types.float32, types.float32), generate


@intrinsic
def _power_of_two(_context: Any, exponent: Any) -> Any:
    """Return 2**exponent for an integer in -126..127 held in a float32."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        biased = builder.add(builder.fptosi(arguments[0], I32), ir.Constant(I32, 127))
        return builder.bitcast(builder.shl(biased, ir.Constant(I32, 23)), F32)

    return types.float32(types.float32), generate


@inlined
def exp(x: np.float32) -> np.float32:
    """Return e**x in float32 to 2 units in the last place, for x in -87..88 and clamped to it.

    Range reduction by log(2) in two parts, then a polynomial of degree 7: Cephes' `expf` (Moshier, 1992).
    """
    x = max(x, np.float32(-87.0))
    x = min(x, np.float32(88.0))
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


@inlined
def tanh(x: np.float32) -> np.float32:
    """Return the hyperbolic tangent in float32, to about 1e-6."""
    return np.float32(1.0) - np.float32(2.0) / (exp(np.float32(2.0) * x) + np.float32(1.0))


@inlined
def copy(count: int, source: Pointer, source_start: int, target: Pointer, target_start: int) -> None:
    """Copy contiguous elements."""
    index = 0
    while count - index >= LANES:
        _copy(LANES, source, source_start + index, target, target_start + index)
        index += LANES
    while index < count:
        _copy(1, source, source_start + index, target, target_start + index)
        index += 1


@intrinsic
def _copy(_context: Any, count: Any, source: Any, source_start: Any, target: Any, target_start: Any) -> Any:
    """Do the work of `copy` for a count known at compile time."""
    if not isinstance(count, types.IntegerLiteral):
        return None
    number = count.literal_value

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        _, source, source_start, target, target_start = arguments
        value = load_lanes(builder, builder.gep(source, [source_start]), number)
        store_lanes(builder, value, builder.gep(target, [target_start]))
        return context.get_dummy_value()

    return types.void(count, source, types.intp, target, types.intp), generate


def lanes_of(lane: Any, count: int) -> Any:
    """Return the type of one lane, or of a vector of `count` lanes."""
    return lane if count == 1 else ir.VectorType(lane, count)


def _constant(kind: Any, value: int) -> Any:
    return ir.Constant(kind, [value] * kind.count if isinstance(kind, ir.VectorType) else value)


def load_lanes(builder: Any, pointer: Any, count: int) -> Any:
    """Emit the load of `count` contiguous elements; return them as float32."""
    element = pointer.type.pointee
    pointer = builder.bitcast(pointer, lanes_of(element, count).as_pointer())
    value = builder.load(pointer, align=_ALIGNMENTS[element])
    if element == F32:
        return value
    words = lanes_of(I32, count)
    if element == _I8:
        return builder.sitofp(builder.sext(value, words), lanes_of(F32, count))
    return builder.bitcast(
        builder.shl(builder.zext(value, words), _constant(words, 16)), lanes_of(F32, count)
    )


def bfloat16_bits(builder: Any, value: Any) -> Any:
    """Emit the rounding of float32 to bfloat16, to nearest even; return the bits in words."""
    words = lanes_of(I32, value.type.count if isinstance(value.type, ir.VectorType) else 1)
    bits = builder.bitcast(value, words)
    last = builder.and_(builder.lshr(bits, _constant(words, 16)), _constant(words, 1))
    bits = builder.add(bits, builder.add(last, _constant(words, 0x7FFF)))
    return builder.lshr(bits, _constant(words, 16))


def store_lanes(builder: Any, value: Any, pointer: Any) -> None:
    """Emit the store of a float32, or a vector of them, to contiguous elements."""
    count = value.type.count if isinstance(value.type, ir.VectorType) else 1
    element = pointer.type.pointee
    if element == _I16:
        value = builder.trunc(bfloat16_bits(builder, value), lanes_of(_I16, count))
    elif element == _I8:
        name = f"llvm.rint.v{count}f32" if count > 1 else "llvm.rint.f32"
        function_type = ir.FunctionType(value.type, [value.type])
        whole = builder.call(cgutils.get_or_insert_function(builder.module, function_type, name), [value])
        value = builder.trunc(builder.fptosi(whole, lanes_of(I32, count)), lanes_of(_I8, count))
    pointer = builder.bitcast(pointer, lanes_of(element, count).as_pointer())
    builder.store(value, pointer, align=_ALIGNMENTS[element])
