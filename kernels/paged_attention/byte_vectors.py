"""Emits instructions on registers of numbers: what kernels need that Numba does not offer."""

from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba.core import cgutils

from kernels.compiled import has_feature
from kernels.simd import F32, I32, I64, LANES, lanes_of

# Without the instructions there is no code for them; who calls it asks first.
HAS_BYTES = all(has_feature(name) for name in ("avx512f", "avx512bw", "avx512vl", "avx512vnni"))
# 2**x for x from -0.5 to 0.5, to 3e-7: the Taylor series.
POWERS = (1.0, 0.6931471806, 0.2402265070, 0.0555041087, 0.0096181291, 0.0013333558, 0.0001540353)

WORD = 4  # bytes that one instruction multiplies and adds in each lane
BYTE, BIT = ir.IntType(8), ir.IntType(1)
FLOATS, WORDS, BYTES, BITS = (ir.VectorType(kind, LANES) for kind in (F32, I32, BYTE, BIT))
LINE, HALF = ir.VectorType(BYTE, LANES * WORD), ir.VectorType(I64, LANES // 2)


def add_product(builder: Any, total: Any, unsigned: Any, signed: Any) -> None:
    """Add the products of four bytes in each lane."""
    name = "llvm.x86.avx512.vpdpbusd.512"
    builder.store(call_llvm(builder, name, WORDS, [builder.load(total), unsigned, signed]), total)


def whole(builder: Any, sums: Sequence[Any]) -> Any:
    """Return the sum of levels, as float32, from those of their bytes, the uppermost first."""
    total, *others = (builder.sitofp(builder.load(one), FLOATS) for one in sums)
    for lower in others:
        total = call_llvm(builder, f"llvm.fma.v{LANES}f32", FLOATS, [total, constant(FLOATS, 256.0), lower])
    return total


def power(builder: Any, x: Any) -> Any:
    """Return 2**x."""
    exponent = call_llvm(builder, f"llvm.rint.v{LANES}f32", FLOATS, [x])
    rest = builder.fsub(x, exponent)
    total = constant(FLOATS, POWERS[-1])
    for factor in reversed(POWERS[:-1]):
        total = call_llvm(builder, f"llvm.fma.v{LANES}f32", FLOATS, [total, rest, constant(FLOATS, factor)])
    masked = [constant(FLOATS, 0.0), ir.Constant(ir.IntType(16), -1), ir.Constant(I32, 4)]
    return call_llvm(builder, "llvm.x86.avx512.mask.scalef.ps.512", FLOATS, [total, exponent, *masked])


def rounded(builder: Any, x: Any) -> Any:
    """Return the nearest integers."""
    masked = [constant(WORDS, 0), ir.Constant(ir.IntType(16), -1), ir.Constant(I32, 4)]
    return call_llvm(builder, "llvm.x86.avx512.mask.cvtps2dq.512", WORDS, [x, *masked])


def keep_larger(builder: Any, largest: Any, x: Any) -> None:
    """Keep the larger number; not NaN."""
    builder.store(_larger(builder, x, builder.load(largest)), largest)


def reduced_maximum(builder: Any, largest: Any) -> Any:
    """Return the largest float of a register.

    LLVM's own reduction looks for NaN after each lane, and takes as long as a Block's products.
    """
    found, count = builder.load(largest), LANES
    while count > 2:
        count //= 2
        halves = (list(range(count)), list(range(count, 2 * count)))
        found = _larger(builder, *(shuffled(builder, found, None, half) for half in halves))
    return _larger(builder, *(builder.extract_element(found, ir.Constant(I32, lane)) for lane in (0, 1)))


def _larger(builder: Any, x: Any, y: Any) -> Any:
    return builder.select(builder.fcmp_ordered(">", x, y), x, y)


def call_llvm(builder: Any, name: str, result: Any, arguments: Sequence[Any]) -> Any:
    """Call one of LLVM's own functions."""
    kind = ir.FunctionType(result, [one.type for one in arguments])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), arguments)


def shuffled(builder: Any, first: Any, second: Any, order: Sequence[int]) -> Any:
    """Return elements of one or two registers, by their numbers."""
    other = ir.Constant(first.type, ir.Undefined) if second is None else second
    return builder.shuffle_vector(first, other, ir.Constant(lanes_of(I32, len(order)), list(order)))


def spread(builder: Any, value: Any) -> Any:
    """Return a register with a value in every lane."""
    one = builder.insert_element(
        ir.Constant(lanes_of(value.type, LANES), ir.Undefined), value, ir.Constant(I32, 0)
    )
    return shuffled(builder, one, None, [0] * LANES)


def variable(builder: Any, start: Any) -> Any:
    """Return memory that LLVM turns into a register, with a value."""
    memory = cgutils.alloca_once(builder, start.type)
    builder.store(start, memory)
    return memory


def at_address(builder: Any, address: Any, kind: Any) -> Any:
    """Return the pointer to what is at an address."""
    return builder.inttoptr(address, kind.as_pointer())


def loaded(builder: Any, address: Any, kind: Any) -> Any:
    """Return what is at an address."""
    return builder.load(at_address(builder, address, kind), align=1)


def constant(kind: Any, value: float) -> Any:
    """Return a register with a number in every lane."""
    return ir.Constant(kind, [value] * kind.count)


def int64(value: int) -> Any:
    """Return a number as an index or a part of an address."""
    return ir.Constant(I64, value)
