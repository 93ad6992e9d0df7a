"""Triton kernel that quantizes tokens, one program per row."""

import triton
import triton.language as tl


@triton.jit
def quantize(x, levels, scales, x_stride, width, LARGEST: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    mask = columns < width
    value = tl.load(x + row * x_stride + columns, mask=mask, other=0.0).to(tl.float32)
    maximum = tl.maximum(tl.max(tl.abs(value), 0), 1e-8)
    # A maximum ignores NaN, but the scale must not.
    has_nan = tl.max((value != value).to(tl.int32), 0)
    tl.store(scales + row, tl.where(has_nan == 1, float("nan"), maximum / LARGEST))
    value = value * (LARGEST / maximum)
    if levels.dtype.element_ty == tl.int8:
        value += tl.where(value < 0, -0.5, 0.5)  # the conversion cuts
    tl.store(levels + row * width + columns, value.to(levels.dtype.element_ty), mask=mask)
