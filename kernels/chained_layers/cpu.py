"""Runs a Step's rows through layers of attention and products in one parallel region.

Rows are written, attended and multiplied by the code of `kv_write`, `paged_attention` and `product_chain`.
All threads share each part of the work and meet after it.
"""

from typing import Any, NamedTuple

from kernels.compiled import Pointer, inlined, kernel
from kernels.kv_write.cpu import WriteCall, write_rows
from kernels.paged_attention.cpu import Team, attend_items
from kernels.paged_attention.task import AttentionCall, PlanNumbers
from kernels.product_chain.cpu import ChainCall, ChainRows, take_through
from kernels.simd import bfloat16_at, float32_at, int8_at, int64_at, pointer_like
from kernels.threads import fork, meet, share, team_size

# Of one piece and layer: a counter for each link of a chain, and one for its attention.
COUNTERS = 5
MOST_LINKS = COUNTERS - 1


class LayerNumbers(NamedTuple):
    """A layer's cache and what follows its attention, by addresses: one line of the table of layers."""

    links: int  # the table of the chain
    num_links: int  # 0: nothing follows
    keys: int
    values: int
    key_scales: int  # 0: the cache is not quantized
    value_scales: int
    angles: int
    query_norm: int  # 0: heads are not normalised
    key_norm: int
    window: int


class Piece(NamedTuple):
    """Neighbouring rows that run together: one line of the table of pieces."""

    first_item: int  # of the plan's
    end_item: int
    first_row: int
    num_rows: int


class LayersCall(NamedTuple):
    """All that the parts of one call share, with tensors by their addresses."""

    layers: int  # [num_layers] LayerNumbers
    num_layers: int
    pieces: int  # [num_pieces] Piece
    num_pieces: int
    counters: int  # [num_pieces, num_layers, COUNTERS] zeros
    team: int  # [1 + num_threads, LINE] zeros
    num_rows: int
    qkv: int  # [num_rows, (num_heads + 2 * num_kv_heads) * head_dim] float32
    query: int  # [num_kv_heads, num_rows, group, head_dim] float32
    attended: int  # [num_rows, num_heads * head_dim] float32
    residual: int  # [num_rows, hidden] float32
    positions: int
    slots: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    scale: float
    soft_cap: float  # 0: none
    head_eps: float  # of the norms of heads
    eps: float
    heads: int  # [num_threads, 2, head_dim] float32
    # What a piece needs between two products.
    piece_rows: int  # the most rows of a piece
    maxima: int  # [piece_rows] float32
    products: int  # [piece_rows, width] float32
    width: int
    levels: int  # [piece_rows, depth] bytes
    depth: int
    own: int  # [num_threads, own_bytes] bytes, as in a ChainCall
    own_bytes: int


@inlined
def _layer(call: LayersCall, number: int) -> LayerNumbers:
    table, at = int64_at(call.layers), number * 10
    return LayerNumbers(
        table[at],
        table[at + 1],
        table[at + 2],
        table[at + 3],
        table[at + 4],
        table[at + 5],
        table[at + 6],
        table[at + 7],
        table[at + 8],
        table[at + 9],
    )


@inlined
def _piece(call: LayersCall, number: int) -> Piece:
    table, at = int64_at(call.pieces), number * 4
    return Piece(table[at], table[at + 1], table[at + 2], table[at + 3])


@inlined
def _write_call(layer: LayerNumbers, call: LayersCall) -> WriteCall:
    return WriteCall(
        call.qkv,
        layer.keys,
        layer.values,
        layer.key_scales,
        layer.value_scales,
        call.num_rows,
        layer.angles,
        call.positions,
        call.slots,
        layer.query_norm,
        layer.key_norm,
        call.head_eps,
        call.num_heads,
        call.num_kv_heads,
        call.head_dim,
        call.block_size,
        call.query,
        call.heads,
    )


@inlined
def _attention_call(layer: LayerNumbers, call: LayersCall) -> AttentionCall:
    return AttentionCall(
        call.query,
        layer.keys,
        layer.values,
        layer.key_scales,
        layer.value_scales,
        call.attended,
        call.num_rows,
        call.num_kv_heads,
        call.num_heads // call.num_kv_heads,
        call.head_dim,
        call.block_size,
        call.scale,
        call.soft_cap,
        layer.window,
    )


@inlined
def _chain_call(layer: LayerNumbers, call: LayersCall) -> ChainCall:
    return ChainCall(
        layer.links,
        layer.num_links,
        0,
        call.num_rows,
        call.piece_rows,
        True,
        call.attended,
        call.residual,
        call.qkv,
        call.eps,
        call.maxima,
        call.products,
        call.width,
        call.levels,
        call.depth,
        call.own,
        call.own_bytes,
        call.team,
    )


@inlined
def _run_piece(
    number: int, member: int, num_members: int, cache: Pointer, call: LayersCall, plan: PlanNumbers
) -> None:
    """Take a piece through all layers, as one of the threads that share it."""
    piece, own = _piece(call, number), call.own + member * call.own_bytes
    begin, end = share(piece.num_rows, member, num_members)
    first, last = piece.first_row + begin, piece.first_row + end
    for index in range(call.num_layers):
        layer, counter = _layer(call, index), (number * call.num_layers + index) * COUNTERS
        keys, values = pointer_like(cache, layer.keys), pointer_like(cache, layer.values)
        write_rows(first, last, member, float32_at(call.qkv), keys, values, _write_call(layer, call))
        meet(call.team, member, num_members)
        team = Team(member, num_members, call.counters + (counter + MOST_LINKS) * 8, call.team)
        attention, out = _attention_call(layer, call), float32_at(call.attended)
        attend_items(piece.first_item, piece.end_item, team, keys, values, out, attention, plan)
        # The last time so that all end together: OpenMP's own barrier spins for long.
        meet(call.team, member, num_members)
        if layer.num_links:
            counters = call.counters + counter * 8
            place = ChainRows(piece.first_row, piece.num_rows, 0, member, num_members, counters, own)
            take_through(place, _chain_call(layer, call))


@kernel
def _run_part(part: int, num_parts: int, cache: Pointer, call: LayersCall, plan: PlanNumbers) -> None:
    num_members = min(num_parts, team_size())  # OpenMP may have started fewer threads
    if part < num_members:
        for number in range(call.num_pieces):
            _run_piece(number, part, num_members, cache, call, plan)


# Numba takes a plain tuple three microseconds faster than a named one.
Numbers = tuple[Any, ...]


@kernel
def run_bfloat16(num_parts: int, numbers: Numbers, plan: Numbers) -> None:
    """Run a LayersCall with a PlanNumbers, given as plain tuples, on so many threads, on a bfloat16 cache."""
    fork(_run_part, num_parts, (bfloat16_at(0), LayersCall(*numbers), PlanNumbers(*plan)))


@kernel
def run_int8(num_parts: int, numbers: Numbers, plan: Numbers) -> None:
    """Do as `run_bfloat16`, on an int8 cache."""
    fork(_run_part, num_parts, (int8_at(0), LayersCall(*numbers), PlanNumbers(*plan)))


@kernel
def run_float32(num_parts: int, numbers: Numbers, plan: Numbers) -> None:
    """Do as `run_bfloat16`, on a float32 cache."""
    fork(_run_part, num_parts, (float32_at(0), LayersCall(*numbers), PlanNumbers(*plan)))
