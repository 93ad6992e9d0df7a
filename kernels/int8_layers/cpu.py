"""Runs a Step's rows through layers of attention and int8 products in one parallel region.

Rows are written, attended and multiplied by the code of `kv_write`, `paged_attention` and `int8_chain`.
"""

from typing import Any, NamedTuple

from kernels.compiled import Pointer, inlined, kernel
from kernels.int8_chain.cpu import ChainCall, Place, take_through
from kernels.int8_chain.tile import PANEL, TILE_ROWS
from kernels.kv_write.cpu import WriteCall, write_rows
from kernels.paged_attention.cpu import AttentionCall, PlanNumbers, attend_item
from kernels.simd import bfloat16_at, float32_at, int8_at, int64_at, pointer_like
from kernels.threads import LINE, fork, meet, share, take_next, team_size, wait_until

# Of one piece and layer: a counter for each link of a chain, and one for its attention.
COUNTERS = 5
MOST_LINKS = COUNTERS - 1
# Where the counters of all pieces begin.
WRITTEN = 2 * LINE


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
    first_needed: int  # the first piece that has rows of the same Sequence as this one's first row


class LayersCall(NamedTuple):
    """All that the parts of one call share, with tensors by their addresses."""

    layers: int  # [num_layers] LayerNumbers
    num_layers: int
    pieces: int  # [num_pieces] Piece
    num_pieces: int
    is_shared: bool  # whether all threads share the work of a piece, or each has pieces of its own
    # Zeros: a line for the next piece and one for the number of finished ones; then, for each piece, the
    # number of layers whose keys and values are written; then COUNTERS for each piece and layer, if shared.
    counters: int
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
    # What rows need between two products: for each thread, or once where threads share a piece.
    piece_rows: int  # the most rows of a piece
    maxima: int  # [piece_rows] float32
    products: int  # [piece_rows, width] float32
    width: int
    levels: int  # [piece_rows, depth] uint8
    depth: int
    sums: int  # [num_threads, TILE_ROWS, PANEL] int32


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
    table, at = int64_at(call.pieces), number * 5
    return Piece(table[at], table[at + 1], table[at + 2], table[at + 3], table[at + 4])


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
        call.is_shared,
        call.attended,
        call.residual,
        call.qkv,
        call.eps,
        call.maxima,
        call.products,
        call.width,
        call.levels,
        call.depth,
        call.sums,
        call.team,
    )


@inlined
def _shared_counters(number: int, layer: int, call: LayersCall) -> int:
    """Return where the counters of a piece and a layer begin."""
    return WRITTEN + call.num_pieces + (number * call.num_layers + layer) * COUNTERS


@inlined
def _attend_piece(
    part: int,
    counter: int,
    piece: Piece,
    layer: LayerNumbers,
    cache: Pointer,
    call: LayersCall,
    plan: PlanNumbers,
) -> None:
    """Compute the attention of a piece; `counter` is its counter's place where threads share it."""
    counters, num_kv_heads, is_shared = int64_at(call.counters), call.num_kv_heads, call.is_shared
    keys, values = pointer_like(cache, layer.keys), pointer_like(cache, layer.values)
    attention = _attention_call(layer, call)
    num_tasks = (piece.end_item - piece.first_item) * num_kv_heads
    task = take_next(counters, counter) if is_shared else 0
    while task < num_tasks:
        item, head = piece.first_item + task // num_kv_heads, task % num_kv_heads
        attend_item(item, head, part, keys, values, float32_at(call.attended), attention, plan)
        task = take_next(counters, counter) if is_shared else task + 1


@kernel
def _run_piece(
    number: int,
    part: int,
    member: int,
    num_members: int,
    cache: Pointer,
    call: LayersCall,
    plan: PlanNumbers,
) -> None:
    """Take a piece through all layers, alone or as one of the members that share it."""
    piece, counters = _piece(call, number), int64_at(call.counters)
    begin, end = share(piece.num_rows, member, num_members)
    start = 0 if call.is_shared else part * call.piece_rows
    for index in range(call.num_layers):
        layer, own = _layer(call, index), _shared_counters(number, index, call)
        keys, values = pointer_like(cache, layer.keys), pointer_like(cache, layer.values)
        first, last = piece.first_row + begin, piece.first_row + end
        write_rows(first, last, part, float32_at(call.qkv), keys, values, _write_call(layer, call))
        if call.is_shared:
            meet(call.team, member, num_members)
        else:
            # Earlier rows of the Sequence may be in pieces that other threads have.
            take_next(counters, WRITTEN + number)
            for needed in range(piece.first_needed, number):
                wait_until(counters, WRITTEN + needed, index + 1)
        _attend_piece(part, own + MOST_LINKS, piece, layer, cache, call, plan)
        if call.is_shared:
            meet(call.team, member, num_members)
        if layer.num_links:
            sums = call.sums + part * TILE_ROWS * PANEL * 4
            place = Place(
                piece.first_row, piece.num_rows, start, member, num_members, call.counters + own * 8, sums
            )
            take_through(place, _chain_call(layer, call))


@kernel
def _run_part(part: int, num_parts: int, cache: Pointer, call: LayersCall, plan: PlanNumbers) -> None:
    counters = int64_at(call.counters)
    if call.is_shared:
        num_members = min(num_parts, team_size())  # OpenMP may have started fewer threads
        if part < num_members:
            for number in range(call.num_pieces):
                _run_piece(number, part, part, num_members, cache, call, plan)
        return
    # Pieces are taken in order, so those that a piece waits for have been taken before it.
    number = take_next(counters, 0)
    while number < call.num_pieces:
        _run_piece(number, part, 0, 1, cache, call, plan)
        take_next(counters, LINE)
        number = take_next(counters, 0)
    if part == 0:
        wait_until(counters, LINE, call.num_pieces)  # sooner asleep than at OpenMP's own barrier


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
