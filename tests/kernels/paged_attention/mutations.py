from tests.kernels.mutation import Mutation, Table
from tests.kernels.paged_attention.byte_mutations import BYTE_TABLES
from tests.kernels.paged_attention.cpu_mutations import CPU_TABLES

ROWS = "test_matches_reference and not every_format"

TABLES = (
    Table(
        "paged_attention/kernel.py",
        "paged_attention/test_gpu.py",
        (
            Mutation(
                "the first split of a window is skipped",
                "context - num_rows - WINDOW + 1",
                "context - num_rows - WINDOW + 2",
                only=ROWS,
            ),
            Mutation(
                "plan: the last tile is left out",
                "tl.cdiv(num_rows, ROWS_PER_TILE)",
                "num_rows // ROWS_PER_TILE",
                only=ROWS,
            ),
            Mutation(
                "plan: decode rows are not split",
                "tl.where(num_rows > 1,",
                "tl.where(num_rows >= 1,",
                only=ROWS,
            ),
            Mutation("every item is of the first head", "item % NUM_KV_HEADS", "item % 1", only=ROWS),
            Mutation(
                "tiles are counted from the first Sequence on",
                "tile -= tl.max(tl.where(is_before, ends, 0), 0)",
                "tile -= 0",
                only=ROWS,
            ),
            Mutation("table of another Sequence", "* table_stride\n", "* (table_stride - 1)\n", only=ROWS),
            Mutation(
                "tile: position of the first tile",
                "position = context - num_rows + skipped",
                "position = context - num_rows",
                only=ROWS,
            ),
            Mutation(
                "tile: the window begins a block late",
                "position - WINDOW + 1 - HAS_TREES * MAX_TREE_ROWS, 0) // BLOCK_N * BLOCK_N",
                "position - WINDOW + 1 - HAS_TREES * MAX_TREE_ROWS, 0) // BLOCK_N * BLOCK_N + BLOCK_N",
                only=ROWS,
            ),
            Mutation(
                "split: counted from the start of the context",
                "begin = (first_split + tile) * SPLIT_SIZE",
                "begin = tile * SPLIT_SIZE",
                only=ROWS,
            ),
            Mutation(
                "split: its last token is left out",
                "tl.minimum(begin + SPLIT_SIZE, context)",
                "tl.minimum(begin + SPLIT_SIZE - 1, context)",
                only=ROWS,
            ),
            Mutation(
                "split: leaves its maximum for its sum",
                "tl.store(partial_stats + part * 2 + 1, total",
                "tl.store(partial_stats + part * 2 + 1, largest",
                only=ROWS,
            ),
            Mutation(
                "rows are taken for dense",
                "row.to(tl.int64)[:, None] * query_stride",
                "row.to(tl.int64)[:, None] * NUM_KV_HEADS * GROUP * HEAD_DIM",
                only=ROWS,
            ),
            Mutation(
                "heads of the first group",
                "head = kv_head * GROUP + index % GROUP",
                "head = index % GROUP",
                only=ROWS,
            ),
            Mutation(
                "no maximum subtracted",
                "tl.fma(scores, unit, -reference[:, None])",
                "scores * unit",
                only=ROWS,
            ),
            Mutation(
                "what was mixed keeps its old weight", "mixed *= shrink[:, None]", "mixed *= 1.0", only=ROWS
            ),
            Mutation(
                "the sum keeps its old weight",
                "total = total * shrink + tl.sum",
                "total = total + tl.sum",
                only=ROWS,
            ),
            Mutation(
                "a row does not read itself",
                "token[None, :] <= row_place[:, None]",
                "token[None, :] < row_place[:, None]",
                only=ROWS,
            ),
            Mutation(
                "the window is one token wider",
                "token[None, :] > window_start[:, None]",
                "token[None, :] >= window_start[:, None]",
                only=ROWS,
            ),
            Mutation(
                "a row that has read nothing subtracts infinity",
                'tl.where(new_largest == float("-inf"), 0.0, new_largest)',
                "new_largest",
                only=ROWS,
            ),
            Mutation("tree: siblings are read", "is_read &= ((gaps", "is_read |= ((gaps", only=ROWS),
            Mutation(
                "tree: a place too near",
                "(row_place[:, None] - token[None, :] - 1).to(tl.uint32)",
                "(row_place[:, None] - token[None, :]).to(tl.uint32)",
                only=ROWS,
            ),
            Mutation(
                "tree: a place outside reads a bit of the tree",
                ".to(tl.uint32), MAX_TREE_ROWS - 1)",
                ".to(tl.uint32), 0)",
                only=ROWS,
            ),
            Mutation(
                "tree: the window begins with the place",
                "count += (bits >> place) & 1",
                "count += 0",
                only=ROWS,
            ),
            Mutation(
                "tree: the tile begins with the place",
                "position - WINDOW + 1 - HAS_TREES * MAX_TREE_ROWS",
                "position - WINDOW + 1",
                only=ROWS,
            ),
            Mutation(
                "tile: rows read what comes after them",
                "position + 1 - HAS_TREES * MAX_TREE_ROWS, 0) // BLOCK_N",
                "position + BLOCK_N - HAS_TREES * MAX_TREE_ROWS, 0) // BLOCK_N",
                only=ROWS,
            ),
            Mutation(
                "tree: siblings before the last tokens are read",
                "position + 1 - HAS_TREES * MAX_TREE_ROWS, 0) // BLOCK_N",
                "position + 1, 0) // BLOCK_N",
                only=ROWS,
            ),
            Mutation(
                "scores have another unit",
                "unit = (soft_cap if HAS_SOFT_CAP else scale) * log2_e",
                "unit = scale * log2_e",
                only=ROWS,
            ),
            Mutation(
                "keys have no scale",
                "scores *= tl.load(scales + slot, mask=in_range, other=0.0)[None, :]",
                "scores *= 1.0",
                only="every_format and int8",
            ),
            Mutation(
                "values have the scales of keys",
                "tl.load(scales + value_slot",
                "tl.load(scales + slot",
                only="every_format and int8",
            ),
            Mutation(
                "values of the next head's keys",
                "value_slot = slot + NUM_KV_HEADS * BLOCK_SIZE",
                "value_slot = slot + BLOCK_SIZE",
                only=ROWS,
            ),
            Mutation("soft cap: another tangent", "1 - 2 / (tl.exp2(", "1 - 1 / (tl.exp2(", only=ROWS),
            Mutation(
                "slots of shorter Blocks",
                "+ kv_head) * BLOCK_SIZE + token % BLOCK_SIZE",
                "+ kv_head) * BLOCK_SIZE + token % (BLOCK_SIZE - 1)",
                only=ROWS,
            ),
            Mutation(
                "fp8: an exponent off", "bitcast=True) * 256.0", "bitcast=True) * 128.0", only="by_its_bits"
            ),
            Mutation(
                "nothing is divided by the sum",
                "mixed / tl.where(is_row, total, 1.0)[:, None]",
                "mixed",
                only=ROWS,
            ),
            Mutation(
                "merge: the splits of a group's first head",
                "* GROUP + head % GROUP\n        stride",
                "* GROUP\n        stride",
                only=ROWS,
            ),
            Mutation(
                "merge: only the last splits",
                "mixed += tl.sum(values * weight[:, None], 0)",
                "mixed = tl.sum(values * weight[:, None], 0)",
                only=ROWS,
            ),
            Mutation(
                "merge: no maximum subtracted",
                "tl.exp2(seen - largest)",
                "tl.exp2(seen)",
                only="large_scores",
            ),
        ),
    ),
    *CPU_TABLES,
    *BYTE_TABLES,
)
