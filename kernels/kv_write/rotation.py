"""Rotates one head by the angles of its token's position."""

from typing import Any

from llvmlite import ir
from numba import types

from kernels.compiled import Pointer, inlined
from kernels.simd import I32, I64, LANES, intrinsic, load_lanes, store_lanes


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
    """Rotate the pairs (x[i], x[half + i]) of `source` and write them to `target`.

    Elements of `target` are `target_stride` apart. `angles` holds `half` cosines, then `half` sines.
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
    """Do the work of `rotate` for a number of pairs known at compile time."""
    if not isinstance(num_pairs, types.IntegerLiteral):
        return None
    count, index = num_pairs.literal_value, types.intp
    signature = types.void(num_pairs, index, source, index, angles, index, target, index, index)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, half, source, source_start, angles, angles_start, target, target_start, stride = arguments

        def halves(pointer: Any, start: Any) -> list[Any]:
            at = builder.gep(pointer, [start])
            return [load_lanes(builder, one, count) for one in (at, builder.gep(at, [half]))]

        (first, second), (cos, sin) = halves(source, source_start), halves(angles, angles_start)
        turned = (
            builder.fsub(builder.fmul(first, cos), builder.fmul(second, sin)),
            builder.fadd(builder.fmul(second, cos), builder.fmul(first, sin)),
        )
        at = builder.gep(target, [target_start])
        with builder.if_else(builder.icmp_signed("==", stride, ir.Constant(I64, 1))) as (dense, spread):
            with dense:
                for offset, values in zip((ir.Constant(I64, 0), half), turned, strict=True):
                    store_lanes(builder, values, builder.gep(at, [offset]))
            with spread:
                for offset, values in zip((ir.Constant(I64, 0), half), turned, strict=True):
                    for lane in range(count):
                        value = (
                            builder.extract_element(values, ir.Constant(I32, lane)) if count > 1 else values
                        )
                        place = builder.mul(builder.add(offset, ir.Constant(I64, lane)), stride)
                        store_lanes(builder, value, builder.gep(at, [place]))
        return context.get_dummy_value()

    return signature, generate
