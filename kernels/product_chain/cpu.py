"""Runs a chain of products: each thread takes rows through all of it, or the threads share the columns.

Rows are encoded, multiplied and finished by the same code in both ways, so a row has the same bits.
"""

from typing import Any, NamedTuple

import numpy as np

from kernels.compiled import Pointer, inlined, kernel
from kernels.product_chain.factors import BYTES, FLOATS, IS_WIDENED, PAIRS, encode_row
from kernels.product_chain.narrow import NarrowPlace, multiply_narrow
from kernels.product_chain.tile import (
    PANEL,
    TILE_ROWS,
    fetched,
    multiply_bytes,
    multiply_floats,
    multiply_pairs,
    tiles_of,
)
from kernels.simd import (
    bfloat16_at,
    copy,
    exp,
    float32_at,
    int8_at,
    int32_at,
    int64_at,
    load,
    store,
    tanh,
    uint8_at,
)
from kernels.threads import fork, meet, share, take_next, team_size

# A thread's results of a last panel that is not whole: [TILE_ROWS, PANEL] float32.
EDGE_BYTES = TILE_ROWS * PANEL * 4
# What follows a product.
NOTHING, NORM, SILU, GELU = range(4)


class LinkNumbers(NamedTuple):
    """A product and what follows it, with tensors by their addresses: one line of a chain's table."""

    panels: int
    offsets: int
    scales: int  # of BYTES only, as offsets are
    bias: int
    in_features: int
    num_words: int
    out_features: int
    num_panels: int
    after: int  # NOTHING, NORM, SILU or GELU
    norm: int
    post_norm: int  # 0: the product is not normalised before it is added
    format: int  # BYTES, PAIRS, WIDENED_PAIRS or FLOATS
    narrow: int  # NarrowNumbers, which rows in that format are multiplied by; 0: the panels


class ChainCall(NamedTuple):
    """All that the parts of one call share, with tensors by their addresses."""

    table: int  # [num_links] LinkNumbers
    num_links: int
    counters: int  # [num_pieces, num_links] zeros: each link's next panel; or at first the next piece
    num_rows: int
    piece_rows: int  # the rows that run together, at most
    is_shared: bool  # whether all threads share the columns of a piece, or each has a piece of its own
    x: int
    residual: int
    out: int
    eps: float
    # What a piece needs, for each thread or once.
    maxima: int  # [piece_rows] float32
    products: int  # [piece_rows, width] float32
    width: int
    levels: int  # [piece_rows, depth] bytes: a row's factors
    depth: int
    own: int  # [num_threads, own_bytes] bytes: EDGE_BYTES, then what a narrow weight needs
    own_bytes: int
    team: int  # [1 + num_threads, LINE] zeros: where all threads meet


class ChainRows(NamedTuple):
    """Rows that run together."""

    first_row: int
    num_rows: int
    start: int  # the first of these rows in the memory for maxima, products and levels
    member: int  # this thread among those that share the rows
    num_members: int
    counters: int  # the address of the piece's
    own: int  # the address of this thread's


@inlined
def _link(call: ChainCall, number: int) -> LinkNumbers:
    table, at = int64_at(call.table), number * 13
    return LinkNumbers(
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
        table[at + 10],
        table[at + 11],
        table[at + 12],
    )


@inlined
def _scale_of_norm(x: Pointer, start: int, width: int, eps: float) -> np.float32:
    squares = np.float32(0)
    for index in range(width):
        squares += load(x, start + index) * load(x, start + index)
    scale: np.float32 = np.float32(1) / np.sqrt(squares / np.float32(width) + np.float32(eps))
    return scale


@inlined
def _add_and_normalise(
    link: LinkNumbers, eps: float, products: Pointer, at: int, residual: Pointer, total_at: int
) -> None:
    """Add a row of products into the residual, and replace it by the normalised sum."""
    width, norm, post_norm = link.out_features, float32_at(link.norm), float32_at(link.post_norm)
    if link.post_norm:
        scale = _scale_of_norm(products, at, width, eps)
        for index in range(width):
            store(products, at + index, load(products, at + index) * scale * load(post_norm, index))
    for index in range(width):
        store(residual, total_at + index, load(residual, total_at + index) + load(products, at + index))
    scale = _scale_of_norm(residual, total_at, width, eps)
    for index in range(width):
        store(products, at + index, load(residual, total_at + index) * scale * load(norm, index))


@inlined
def _gate(is_gelu: bool, products: Pointer, at: int, width: int) -> None:
    """Replace the first half of a row by its activation times the second half."""
    if is_gelu:
        for index in range(width):
            gate, up = load(products, at + index), load(products, at + width + index)
            inner = np.float32(0.7978845608) * (gate + np.float32(0.044715) * gate * gate * gate)
            store(products, at + index, np.float32(0.5) * gate * (np.float32(1) + tanh(inner)) * up)
    else:
        for index in range(width):
            gate, up = load(products, at + index), load(products, at + width + index)
            store(products, at + index, gate / (np.float32(1) + exp(-gate)) * up)


@inlined
def _follow(link: LinkNumbers, row: int, place: ChainRows, call: ChainCall) -> None:
    """Turn a row of products into what the next link takes."""
    products, at = float32_at(call.products), (place.start + row) * call.width
    if link.after == NORM:
        start = (place.first_row + row) * link.out_features
        _add_and_normalise(link, call.eps, products, at, float32_at(call.residual), start)
    elif link.after != NOTHING:
        _gate(link.after == GELU, products, at, link.out_features // 2)


@inlined
def _encode_row(link: LinkNumbers, x: Pointer, start: int, row: int, call: ChainCall) -> None:
    """Write a row as the panels of a link are multiplied by it."""
    encode_row(link.format, link.in_features, x, start, call.levels, call.depth, call.maxima, row)


@inlined
def _multiply(
    link: LinkNumbers, panel: int, out: Pointer, start: int, stride: int, place: ChainRows, call: ChainCall
) -> None:
    """Write the columns of a panel for all rows of the place; a row of `out` is `stride` long."""
    if link.narrow:
        _multiply_narrow(link, panel, out, start, stride, place, call)
        return
    column = panel * PANEL
    is_whole = stride - column >= PANEL
    # What would reach beyond a row goes through memory of this thread.
    target, line = out if is_whole else float32_at(place.own), stride if is_whole else PANEL
    num_tiles = tiles_of(place.num_rows)
    following = panel + place.num_members
    ahead, step = fetched(num_tiles, link.panels, following, link.num_panels, link.num_words)
    for tile in range(num_tiles):
        first, end = share(place.num_rows, tile, num_tiles)
        num_rows, at = end - first, start + first * stride + column
        where = at if is_whole else 0
        _multiply_tile(link, column, first, num_rows, ahead, step, target, where, line, place, call)
        ahead += step * link.num_words
        if not is_whole:
            for row in range(num_rows):
                for index in range(stride - column):
                    store(out, at + row * stride + index, load(target, row * PANEL + index))


@inlined
def _multiply_narrow(
    link: LinkNumbers, panel: int, out: Pointer, start: int, stride: int, place: ChainRows, call: ChainCall
) -> None:
    """Do `_multiply` for a narrow weight."""
    weight, bias, depth, own = link.narrow, link.bias, call.depth, place.own
    x, column, following = call.levels + place.start * depth, panel * PANEL, panel + place.num_members
    if following >= link.num_panels:
        following = -1
    rows, memory, width = place.num_rows, own + EDGE_BYTES, min(PANEL, stride - column)
    if width == PANEL:
        at = start + column
        multiply_narrow(NarrowPlace(weight, panel, following, rows, x, depth, bias, memory, out, at, stride))
        return
    # What would reach beyond a row goes through memory of this thread.
    edge = float32_at(own)
    for first in range(0, rows, TILE_ROWS):
        count = min(TILE_ROWS, rows - first)
        multiply_narrow(
            NarrowPlace(weight, panel, -1, count, x + first * depth, depth, bias, memory, edge, 0, PANEL)
        )
        for row in range(count):
            copy(width, edge, row * PANEL, out, start + (first + row) * stride + column)


@inlined
def _multiply_tile(
    link: LinkNumbers,
    column: int,
    first: int,
    num_rows: int,
    ahead: int,
    step: int,
    out: Pointer,
    start: int,
    stride: int,
    place: ChainRows,
    call: ChainCall,
) -> None:
    """Write the columns of a panel for a few rows of the place, from one on."""
    levels, row = uint8_at(call.levels), place.start + first
    if link.format == BYTES:
        multiply_bytes(
            num_rows,
            link.num_words,
            ahead,
            step,
            levels,
            row * call.depth,
            call.depth,
            int8_at(link.panels),
            column,
            int32_at(link.offsets),
            float32_at(link.scales),
            float32_at(link.bias),
            float32_at(call.maxima),
            row,
            out,
            start,
            stride,
        )
    elif link.format == FLOATS:
        multiply_floats(
            num_rows,
            link.num_words,
            ahead,
            step,
            levels,
            row * call.depth,
            call.depth,
            float32_at(link.panels),
            column,
            float32_at(link.bias),
            out,
            start,
            stride,
        )
    elif IS_WIDENED or link.format != PAIRS:
        multiply_floats(
            num_rows,
            link.num_words,
            ahead,
            step,
            levels,
            row * call.depth,
            call.depth,
            bfloat16_at(link.panels),
            column,
            float32_at(link.bias),
            out,
            start,
            stride,
        )
    else:
        multiply_pairs(
            num_rows,
            link.num_words,
            ahead,
            step,
            levels,
            row * call.depth,
            call.depth,
            bfloat16_at(link.panels),
            column,
            float32_at(link.bias),
            out,
            start,
            stride,
        )


@inlined
def _prepare(number: int, link: LinkNumbers, place: ChainRows, call: ChainCall) -> None:
    """Encode this thread's rows for a link, from what was given or from the products of the link before."""
    begin, end = share(place.num_rows, place.member, place.num_members)
    if number:
        before, products = _link(call, number - 1), float32_at(call.products)
        for row in range(begin, end):
            _follow(before, row, place, call)
            at = (place.start + row) * call.width
            _encode_row(link, products, at, place.start + row, call)
    else:
        x = float32_at(call.x)
        for row in range(begin, end):
            at = (place.first_row + row) * link.in_features
            _encode_row(link, x, at, place.start + row, call)


@inlined
def _finish(link: LinkNumbers, place: ChainRows, call: ChainCall) -> None:
    """Write this thread's rows of the result, unless the last product has written them."""
    products, out = float32_at(call.products), float32_at(call.out)
    begin, end = share(place.num_rows, place.member, place.num_members)
    for row in range(begin, end):
        _follow(link, row, place, call)
        source, target = (place.start + row) * call.width, (place.first_row + row) * link.out_features
        for index in range(link.out_features):
            store(out, target + index, load(products, source + index))


@kernel
def take_through(place: ChainRows, call: ChainCall) -> None:
    """Take rows through the whole chain; at the end, members who share them have met."""
    counters, is_shared = int64_at(place.counters), call.is_shared
    for number in range(call.num_links):
        link = _link(call, number)
        _prepare(number, link, place, call)
        if is_shared:
            meet(call.team, place.member, place.num_members)
        out, start, stride = float32_at(call.products), place.start * call.width, call.width
        if number == call.num_links - 1 and link.after == NOTHING:
            out, stride = float32_at(call.out), link.out_features
            start = place.first_row * stride
        panel = take_next(counters, number) if is_shared else 0
        while panel < link.num_panels:
            _multiply(link, panel, out, start, stride, place, call)
            panel = take_next(counters, number) if is_shared else panel + 1
        if is_shared:
            meet(call.team, place.member, place.num_members)
    last = _link(call, call.num_links - 1)
    if last.after != NOTHING:
        _finish(last, place, call)


@kernel
def _run_part(part: int, num_parts: int, call: ChainCall) -> None:
    num_members = min(num_parts, team_size())  # OpenMP may have started fewer threads
    own, rows = call.own + part * call.own_bytes, call.piece_rows
    num_pieces = (call.num_rows + rows - 1) // rows
    if call.is_shared:
        if part < num_members:
            for piece in range(num_pieces):
                num_rows = min(rows, call.num_rows - piece * rows)
                counters = call.counters + piece * call.num_links * 8
                take_through(ChainRows(piece * rows, num_rows, 0, part, num_members, counters, own), call)
        return
    piece = take_next(int64_at(call.counters), 0)
    while piece < num_pieces:
        num_rows = min(rows, call.num_rows - piece * rows)
        take_through(ChainRows(piece * rows, num_rows, part * rows, 0, 1, call.counters, own), call)
        piece = take_next(int64_at(call.counters), 0)


# Numba takes a plain tuple three microseconds faster than a named one.
Numbers = tuple[Any, ...]


@kernel
def run_links(num_parts: int, numbers: Numbers) -> None:
    """Run a ChainCall, given as a plain tuple, on so many threads."""
    fork(_run_part, num_parts, (ChainCall(*numbers),))
