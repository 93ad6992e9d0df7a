"""Triton kernel of a gated activation; each program takes a stretch of one row."""

import triton
import triton.language as tl


@triton.jit
def gate_and_multiply(gate_up, out, gate_up_stride, width, ACTIVATION: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < width
    source = gate_up + row * gate_up_stride + columns
    gate = tl.load(source, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(source + width, mask=mask, other=0.0).to(tl.float32)
    if ACTIVATION == "silu":
        value = gate / (1 + tl.exp(-gate)) * up
    else:
        # tanh(z) = 1 - 2 / (exp(2 z) + 1), which saturates correctly when the exponential overflows.
        inner = 0.7978845608028654 * (gate + 0.044715 * gate * gate * gate)
        value = gate * (1 - 1 / (tl.exp(2 * inner) + 1)) * up
    tl.store(out + row * width + columns, value.to(out.dtype.element_ty), mask=mask)
