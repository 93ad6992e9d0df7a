"""Triton kernel of RMS normalisation, one program per row."""

import triton
import triton.language as tl


@triton.jit
def normalise(
    x, residual, weight, out, x_stride, hidden, eps, HAS_RESIDUAL: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    mask = columns < hidden
    value = tl.load(x + row * x_stride + columns, mask=mask, other=0.0).to(tl.float32)
    if HAS_RESIDUAL:
        at = residual + row * hidden + columns
        value += tl.load(at, mask=mask, other=0.0).to(tl.float32)
        tl.store(at, value.to(residual.dtype.element_ty), mask=mask)
    scale = tl.rsqrt(tl.sum(value * value, 0) / hidden + eps)
    value = value * scale * tl.load(weight + columns, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + row * hidden + columns, value.to(out.dtype.element_ty), mask=mask)
