"""Triton functions that begin and finish every product with a quantized weight."""

import triton
import triton.language as tl


@triton.jit
def tile_of():
    """Return the tile of tokens and the tile of the weight's rows of this program, in a grid (rows, tokens).

    Programs that run together share eight tiles of tokens: each then reads the weight from the second-level
    cache but once from memory for all eight, where it would read it from memory for each.
    """
    return tl.swizzle2d(tl.program_id(1), tl.program_id(0), tl.num_programs(1), tl.num_programs(0), 8)


@triton.jit
def add_gate_store(tile, bias, out, tokens, row, num_tokens, out_features, GATED: tl.constexpr):
    """Add the bias to sums [tokens, rows], gate them and store them; the first row is `row`."""
    BLOCK_M: tl.constexpr = tile.shape[0]
    BLOCK_N: tl.constexpr = tile.shape[1]
    rows = row + tl.arange(0, BLOCK_N)
    if bias is not None:
        tile += tl.load(bias + rows, mask=rows < out_features, other=0.0).to(tl.float32)[None, :]
    if GATED:
        # Rows alternate between gate and up.
        gate, up = tl.split(tl.reshape(tile, (BLOCK_M, BLOCK_N // 2, 2)))
        tile = gate / (1 + tl.exp(-gate)) * up
        rows = row // 2 + tl.arange(0, BLOCK_N // 2)
        out_features = out_features // 2
    mask = (tokens < num_tokens)[:, None] & (rows < out_features)[None, :]
    place = tokens.to(tl.int64)[:, None] * out_features + rows[None, :]
    tl.store(out + place, tile.to(out.dtype.element_ty), mask=mask)
