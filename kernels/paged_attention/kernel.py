"""Triton kernels of paged attention: decode rows and prompt tiles in one launch, then a merge of splits.

The programs of a launch share its items; an item is a tile of a Sequence for one KV head. The list of items
is read from the device, so a launch can be recorded in a CUDA graph and replayed with other lengths.
"""

import triton
import triton.language as tl


@triton.jit
def _first_split(num_rows, context, WINDOW: tl.constexpr, SPLIT_SIZE: tl.constexpr):
    # Splits start at multiples of their size from token 0, wherever a window begins.
    first = 0
    if WINDOW > 0:
        first = tl.maximum(context - num_rows - WINDOW + 1, 0) // SPLIT_SIZE
    return first


# A number that changes from Step to Step must not trigger a compilation.
@triton.jit(do_not_specialize=["num_sequences"])
def plan_tiles(
    query_starts,
    context_lens,
    tile_ends,
    num_sequences,
    WINDOW: tl.constexpr,
    SPLIT_SIZE: tl.constexpr,
    ROWS_PER_TILE: tl.constexpr,
    BLOCK_SEQUENCES: tl.constexpr,
):
    sequence = tl.arange(0, BLOCK_SEQUENCES)
    mask = sequence < num_sequences
    first = tl.load(query_starts + sequence, mask=mask, other=0)
    num_rows = tl.load(query_starts + sequence + 1, mask=mask, other=0) - first
    context = tl.load(context_lens + sequence, mask=mask, other=0)
    splits = tl.cdiv(context, SPLIT_SIZE) - _first_split(num_rows, context, WINDOW, SPLIT_SIZE)
    tiles = tl.where(num_rows > 1, tl.cdiv(num_rows, ROWS_PER_TILE), splits)
    tiles = tl.where(num_rows > 0, tiles, 0)
    tl.store(tile_ends + sequence, tl.cumsum(tiles, 0), mask=mask)


@triton.jit(do_not_specialize=["num_sequences", "table_stride", "max_splits"])
def paged_attention(
    query,
    blocks,
    scales,
    block_tables,
    query_starts,
    context_lens,
    hidden,
    tile_ends,
    out,
    partial_out,
    partial_stats,
    scale,
    soft_cap,
    num_sequences,
    table_stride,
    max_splits,
    query_stride,
    NUM_KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    WINDOW: tl.constexpr,
    HAS_SOFT_CAP: tl.constexpr,
    FORMAT: tl.constexpr,
    SPLIT_SIZE: tl.constexpr,
    HAS_PROMPTS: tl.constexpr,
    HAS_TREES: tl.constexpr,
    MAX_TREE_ROWS: tl.constexpr,
    ROWS_PER_TILE: tl.constexpr,
    BLOCK_SPLIT_M: tl.constexpr,
    BLOCK_TILE_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_SEQUENCES: tl.constexpr,
):
    all_sequences = tl.arange(0, BLOCK_SEQUENCES)
    ends = tl.load(tile_ends + all_sequences, mask=all_sequences < num_sequences, other=0x7FFFFFFF)
    num_items = tl.load(tile_ends + num_sequences - 1) * NUM_KV_HEADS
    for item in range(tl.program_id(0), num_items, tl.num_programs(0)):
        kv_head = item % NUM_KV_HEADS
        tile = item // NUM_KV_HEADS
        is_before = ends <= tile
        sequence = tl.sum(is_before.to(tl.int32), 0)
        tile -= tl.max(tl.where(is_before, ends, 0), 0)  # its number within its Sequence
        first_row = tl.load(query_starts + sequence)
        num_rows = tl.load(query_starts + sequence + 1) - first_row
        context = tl.load(context_lens + sequence)
        table = block_tables + sequence.to(tl.int64) * table_stride
        # The branches are separate functions because their results differ in shape.
        if num_rows > 1:
            if HAS_PROMPTS:
                _attend_tile(
                    query, blocks, scales, table, hidden, out, first_row, num_rows, context, tile, kv_head,
                    scale, soft_cap, query_stride,
                    NUM_KV_HEADS, GROUP, HEAD_DIM, BLOCK_SIZE, WINDOW, HAS_SOFT_CAP, FORMAT,
                    HAS_TREES, MAX_TREE_ROWS, ROWS_PER_TILE, BLOCK_TILE_M, BLOCK_N, BLOCK_D)  # fmt: skip
        else:
            _attend_split(
                query, blocks, scales, table, out, partial_out, partial_stats,
                first_row, num_rows, context, tile, kv_head, sequence, max_splits,
                scale, soft_cap, query_stride,
                NUM_KV_HEADS, GROUP, HEAD_DIM, BLOCK_SIZE, WINDOW, HAS_SOFT_CAP, FORMAT,
                SPLIT_SIZE, BLOCK_SPLIT_M, BLOCK_N, BLOCK_D)  # fmt: skip


@triton.jit
def _attend_tile(
    query, blocks, scales, table, hidden, out, first_row, num_rows, context, tile, kv_head,
    scale, soft_cap, query_stride,
    NUM_KV_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    WINDOW: tl.constexpr, HAS_SOFT_CAP: tl.constexpr, FORMAT: tl.constexpr,
    HAS_TREES: tl.constexpr, MAX_TREE_ROWS: tl.constexpr,
    ROWS_PER_TILE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    # Attends with some rows of a prompt, each over its whole context or window.
    skipped = tile * ROWS_PER_TILE
    position = context - num_rows + skipped
    tile_rows = tl.minimum(num_rows - skipped, ROWS_PER_TILE)
    begin = 0
    if WINDOW > 0:
        begin = tl.maximum(position - WINDOW + 1 - HAS_TREES * MAX_TREE_ROWS, 0) // BLOCK_N * BLOCK_N
        masked = begin
    else:
        # Every row reads what lies before the first of them, and before a tree.
        masked = tl.maximum(position + 1 - HAS_TREES * MAX_TREE_ROWS, 0) // BLOCK_N * BLOCK_N
    row, head, is_row, _, total, mixed = _attend(
        query, blocks, scales, table, hidden, first_row + skipped, tile_rows, position, kv_head,
        begin, masked, position + tile_rows, WINDOW == 0, scale, soft_cap, query_stride,
        NUM_KV_HEADS, GROUP, HEAD_DIM, BLOCK_SIZE, WINDOW, HAS_SOFT_CAP, FORMAT, HAS_TREES, MAX_TREE_ROWS,
        BLOCK_M, BLOCK_N, BLOCK_D)  # fmt: skip
    _store(out, row, head, is_row, total, mixed, NUM_KV_HEADS * GROUP, HEAD_DIM, BLOCK_D)


@triton.jit
def _attend_split(
    query, blocks, scales, table, out, partial_out, partial_stats,
    first_row, num_rows, context, tile, kv_head, sequence, max_splits,
    scale, soft_cap, query_stride,
    NUM_KV_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    WINDOW: tl.constexpr, HAS_SOFT_CAP: tl.constexpr, FORMAT: tl.constexpr,
    SPLIT_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    # Attends with the one row of a Sequence, over one split of its context.
    position = context - num_rows
    first_split = _first_split(num_rows, context, WINDOW, SPLIT_SIZE)
    begin = (first_split + tile) * SPLIT_SIZE
    end = tl.minimum(begin + SPLIT_SIZE, context)
    if WINDOW > 0:
        begin = tl.maximum(begin, tl.maximum(position - WINDOW + 1, 0) // BLOCK_N * BLOCK_N)
    row, head, is_row, largest, total, mixed = _attend(
        query, blocks, scales, table, None, first_row, num_rows, position, kv_head,
        begin, begin, end, False, scale, soft_cap, query_stride,
        NUM_KV_HEADS, GROUP, HEAD_DIM, BLOCK_SIZE, WINDOW, HAS_SOFT_CAP, FORMAT, False, 0,
        BLOCK_M, BLOCK_N, BLOCK_D)  # fmt: skip
    # Without parts no context has two splits. The compiler must know it: it cannot store to None.
    if partial_out is None:  # noqa: SIM114
        _store(out, row, head, is_row, total, mixed, NUM_KV_HEADS * GROUP, HEAD_DIM, BLOCK_D)
    elif tl.cdiv(context, SPLIT_SIZE) - first_split == 1:
        _store(out, row, head, is_row, total, mixed, NUM_KV_HEADS * GROUP, HEAD_DIM, BLOCK_D)
    else:
        part = (sequence.to(tl.int64) * max_splits + tile) * NUM_KV_HEADS + kv_head
        part = part * GROUP + tl.arange(0, BLOCK_M)
        column = tl.arange(0, BLOCK_D)
        tl.store(
            partial_out + part[:, None] * HEAD_DIM + column[None, :],
            mixed,
            mask=is_row[:, None] & (column < HEAD_DIM)[None, :],
        )
        tl.store(partial_stats + part * 2, largest, mask=is_row)
        tl.store(partial_stats + part * 2 + 1, total, mask=is_row)


@triton.jit
def _attend(
    query, blocks, scales, table, hidden, first_row, num_rows, position, kv_head,
    begin, masked, end, HAS_UNMASKED: tl.constexpr, scale, soft_cap, query_stride,
    NUM_KV_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    WINDOW: tl.constexpr, HAS_SOFT_CAP: tl.constexpr, FORMAT: tl.constexpr,
    HAS_TREES: tl.constexpr, MAX_TREE_ROWS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    # Tokens from `begin` to `masked`, whole tiles of them, are read by all rows; those to `end` by some.
    # Rows of the products are the heads of a group, then those of the next query row.
    index = tl.arange(0, BLOCK_M)
    row = first_row + index // GROUP
    head = kv_head * GROUP + index % GROUP
    row_place = position + index // GROUP
    is_row = index < num_rows * GROUP
    gaps = None
    if HAS_TREES:
        gaps = tl.load(hidden + row, mask=is_row, other=0)  # the highest bit of int32 is never set
    column = tl.arange(0, BLOCK_D)
    in_head = column < HEAD_DIM
    at = query + row.to(tl.int64)[:, None] * query_stride + head[:, None] * HEAD_DIM + column[None, :]
    q = tl.load(at, mask=is_row[:, None] & in_head[None, :], other=0.0)
    largest = tl.full((BLOCK_M,), float("-inf"), tl.float32)  # of the scores so far, in powers of 2
    total = tl.zeros((BLOCK_M,), tl.float32)
    mixed = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    if HAS_UNMASKED:
        largest, total, mixed = _read(
            q, largest, total, mixed, blocks, scales, table, kv_head, row_place, gaps, begin, masked,
            scale, soft_cap, False,
            NUM_KV_HEADS, HEAD_DIM, BLOCK_SIZE, WINDOW, HAS_SOFT_CAP, FORMAT, HAS_TREES, MAX_TREE_ROWS,
            BLOCK_N, BLOCK_D)  # fmt: skip
    largest, total, mixed = _read(
        q, largest, total, mixed, blocks, scales, table, kv_head, row_place, gaps, masked, end,
        scale, soft_cap, True,
        NUM_KV_HEADS, HEAD_DIM, BLOCK_SIZE, WINDOW, HAS_SOFT_CAP, FORMAT, HAS_TREES, MAX_TREE_ROWS,
        BLOCK_N, BLOCK_D)  # fmt: skip
    return row, head, is_row, largest, total, mixed


@triton.jit
def _read(
    q, largest, total, mixed, blocks, scales, table, kv_head, row_place, gaps, begin, end,
    scale, soft_cap, IS_MASKED: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    WINDOW: tl.constexpr, HAS_SOFT_CAP: tl.constexpr, FORMAT: tl.constexpr,
    HAS_TREES: tl.constexpr, MAX_TREE_ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    # Goes on with the softmax over the tokens from `begin` to `end`: unmasked, all of them, in whole tiles.
    column = tl.arange(0, BLOCK_D)
    in_head = column < HEAD_DIM
    log2_e: tl.constexpr = 1.4426950408889634
    unit = (soft_cap if HAS_SOFT_CAP else scale) * log2_e  # of scores, in powers of 2; positive
    for start in range(begin, end, BLOCK_N):
        token = start + tl.arange(0, BLOCK_N)
        in_range = token < end if IS_MASKED else token >= 0
        block = tl.load(table + token // BLOCK_SIZE, mask=in_range, other=0).to(tl.int64)
        # Rows in a view of the cache as [num_blocks * 2 * num_kv_heads * block_size, head_dim].
        slot = (block * 2 * NUM_KV_HEADS + kv_head) * BLOCK_SIZE + token % BLOCK_SIZE
        key_at = blocks + slot[None, :] * HEAD_DIM + column[:, None]
        key = _operand(tl.load(key_at, mask=in_head[:, None] & in_range[None, :], other=0.0), q.dtype)
        scores = tl.dot(q, key, input_precision="ieee")
        if FORMAT != "plain":
            scores *= tl.load(scales + slot, mask=in_range, other=0.0)[None, :]
        if HAS_SOFT_CAP:
            # tanh(x) = 1 - 2 / (exp(2 x) + 1), which saturates correctly when the exponential overflows.
            scores = 1 - 2 / (tl.exp2(scores * (2 * log2_e * scale / soft_cap)) + 1)
        if IS_MASKED:
            is_read = (token[None, :] <= row_place[:, None]) & in_range[None, :]
            if HAS_TREES:
                # A place outside the tree reads the highest bit, never set; so does one after the row.
                bit = tl.minimum((row_place[:, None] - token[None, :] - 1).to(tl.uint32), MAX_TREE_ROWS - 1)
                is_read &= ((gaps[:, None] >> bit) & 1) == 0
            if WINDOW > 0:
                window_start = row_place - WINDOW
                if HAS_TREES:
                    window_start -= _num_bits(gaps, MAX_TREE_ROWS)
                is_read &= token[None, :] > window_start[:, None]
            scores = tl.where(is_read, scores, float("-inf"))
        new_largest = tl.maximum(largest, tl.max(scores, 1) * unit)
        # A row without a read token keeps weight 0; the plain formula would give inf - inf.
        reference = tl.where(new_largest == float("-inf"), 0.0, new_largest) if IS_MASKED else new_largest
        # One rounding for the product and the difference, masked or not, so that a row keeps its bits.
        weights = tl.exp2(tl.fma(scores, unit, -reference[:, None]))
        shrink = tl.exp2(largest - reference)
        total = total * shrink + tl.sum(weights, 1)
        mixed *= shrink[:, None]
        value_slot = slot + NUM_KV_HEADS * BLOCK_SIZE
        if FORMAT != "plain":
            weights *= tl.load(scales + value_slot, mask=in_range, other=0.0)[None, :]
        value_at = blocks + value_slot[:, None] * HEAD_DIM + column[None, :]
        value = _operand(tl.load(value_at, mask=in_range[:, None] & in_head[None, :], other=0.0), q.dtype)
        mixed = tl.dot(weights.to(q.dtype), value, mixed, input_precision="ieee")
        largest = new_largest
    return largest, total, mixed


@triton.jit
def _num_bits(bits, MAX_TREE_ROWS: tl.constexpr):
    count = bits & 1
    for place in range(1, MAX_TREE_ROWS):
        count += (bits >> place) & 1
    return count


@triton.jit
def _operand(x, dtype: tl.constexpr):
    if x.dtype == tl.uint8:
        # Converts float8_e4m3fn by its bits, for chips that cannot: with its three bits of mantissa moved to
        # the top of float16's, the value is 2^-8 of the true one, subnormals included.
        bits = ((x & 0x80).to(tl.uint16) << 8) | ((x & 0x7F).to(tl.uint16) << 7)
        x = bits.to(tl.float16, bitcast=True) * 256.0
    return x.to(dtype)


@triton.jit
def _store(
    out, row, head, is_row, total, mixed,
    NUM_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    column = tl.arange(0, BLOCK_D)
    at = out + (row.to(tl.int64) * NUM_HEADS + head)[:, None] * HEAD_DIM + column[None, :]
    value = mixed / tl.where(is_row, total, 1.0)[:, None]
    tl.store(at, value.to(out.dtype.element_ty), mask=is_row[:, None] & (column < HEAD_DIM)[None, :])


@triton.jit(do_not_specialize=["max_splits"])
def merge_splits(
    query_starts,
    context_lens,
    out,
    partial_out,
    partial_stats,
    max_splits,
    NUM_KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    WINDOW: tl.constexpr,
    SPLIT_SIZE: tl.constexpr,
    BLOCK_SPLITS: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    sequence = tl.program_id(0)
    head = tl.program_id(1)
    first_row = tl.load(query_starts + sequence)
    num_rows = tl.load(query_starts + sequence + 1) - first_row
    context = tl.load(context_lens + sequence)
    num_splits = tl.cdiv(context, SPLIT_SIZE) - _first_split(num_rows, context, WINDOW, SPLIT_SIZE)
    if (num_rows == 1) & (num_splits > 1):
        column = tl.arange(0, BLOCK_D)
        in_head = column < HEAD_DIM
        first = (sequence.to(tl.int64) * max_splits * NUM_KV_HEADS + head // GROUP) * GROUP + head % GROUP
        stride: tl.constexpr = NUM_KV_HEADS * GROUP  # from split to split
        largest = float("-inf")
        for split in range(0, num_splits, BLOCK_SPLITS):
            index = split + tl.arange(0, BLOCK_SPLITS)
            at = partial_stats + (first + index * stride) * 2
            seen = tl.load(at, mask=index < num_splits, other=float("-inf"))
            largest = tl.maximum(largest, tl.max(seen, 0))
        total = 0.0
        mixed = tl.zeros((BLOCK_D,), tl.float32)
        for split in range(0, num_splits, BLOCK_SPLITS):
            index = split + tl.arange(0, BLOCK_SPLITS)
            mask = index < num_splits
            part = first + index * stride
            seen = tl.load(partial_stats + part * 2, mask=mask, other=float("-inf"))
            weight = tl.exp2(seen - largest)
            total += tl.sum(weight * tl.load(partial_stats + part * 2 + 1, mask=mask, other=0.0), 0)
            at = partial_out + part[:, None] * HEAD_DIM + column[None, :]
            values = tl.load(at, mask=mask[:, None] & in_head[None, :], other=0.0)
            mixed += tl.sum(values * weight[:, None], 0)
        at = out + (first_row.to(tl.int64) * NUM_KV_HEADS * GROUP + head) * HEAD_DIM + column
        tl.store(at, (mixed / total).to(out.dtype.element_ty), mask=in_head)
