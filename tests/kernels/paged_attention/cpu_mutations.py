"""What can be wrong in attention on a CPU, but for byte products."""

from kernels.tile import NARROW_SUMS
from tests.kernels.mutation import Mutation, Table

SHARED = "threads_share"

CPU_TABLES = (
    Table(
        "paged_attention/floats.py",
        "paged_attention/test_paged_attention.py",
        (
            Mutation("scores are not scaled", "load(scores, index) * scale)", "load(scores, index))"),
            Mutation(
                "no maximum subtracted",
                "peak = maximum(peak, load(scores, index))",
                "peak = np.float32(0)",
                only="large_scores",
            ),
            Mutation("soft cap: only the tangent", "cap * tanh(", "tanh("),
            Mutation("weights do not sum to one", "np.float32(1) / total", "np.float32(1)"),
            Mutation(
                "scale of a Block's first Slot", "load(scales, at + slot)", "load(scales, at)", only="int8"
            ),
            Mutation(
                "values have the scales of keys",
                "_scale_slots(task, vector, call.value_scales, task",
                "_scale_slots(task, vector, call.key_scales, task",
                only="int8",
            ),
            Mutation("a row does not read itself", "start + position + 1\n", "start + position\n"),
            Mutation(
                "the window is one token narrower",
                "max(0, position + 1 - call.window)",
                "max(0, position + 2 - call.window)",
            ),
            Mutation(
                "rows of an item share a position",
                "row = task.first_row + vector // call.group",
                "row = task.first_row",
            ),
            Mutation(
                "values past the context are mixed in",
                "min(block_size, task.context - block * block_size)",
                "block_size",
            ),
            Mutation(
                "vectors share their scores",
                "column + vector * task.width + (block - first) * block_size",
                "column + (block - first) * block_size",
            ),
            Mutation(
                "tree: scores stay where they are",
                "store(scratch, start + position, load(scratch, start + place))",
                "store(scratch, start + place, load(scratch, start + place))",
            ),
            Mutation(
                "tree: weights of hidden places stay",
                "position = _close_gaps(row, start, plan)",
                "_close_gaps(row, start, plan)",
            ),
            Mutation(
                "tree: rows share a path's values",
                "path + position % block_size * head_dim",
                "path",
            ),
            Mutation(
                "tree: values of the path have no scale",
                "load(scratch, at) * load(float32_at(call.value_scales), slot)",
                "load(scratch, at)",
                only="int8",
            ),
            Mutation(
                "tree: every head has the first one's weights",
                "weights + head * task.width + begin",
                "weights + begin",
            ),
            Mutation(
                "tree: the last Block only",
                "if position % block_size and place < last:",
                "if place < last:",
            ),
            Mutation(
                "keys of the first share",
                "column = task.scores + (first - task.first_block) * block_size",
                "column = task.scores",
                only=SHARED,
            ),
            Mutation(
                "columns of the first share",
                "Matrix(values, at + first_column, head_dim)",
                "Matrix(values, at, head_dim)",
                only=SHARED,
            ),
        ),
    ),
    Table(
        "paged_attention/cpu.py",
        "paged_attention/test_paged_attention.py",
        (
            Mutation(
                "every task is of the first head", "number % num_kv_heads, team.member", "0, team.member"
            ),
            Mutation("the first item is left out", "attend_items(0, plan", "attend_items(1, plan"),
            Mutation("tokens that no row reads count", "+ 1, call.window)", "+ 1, 1 << 62)", only=SHARED),
            Mutation("a share of one head is fair", "total * call.num_kv_heads //", "total //", only=SHARED),
            Mutation(
                "short contexts are shared",
                "fair_share > 0 and tokens >= LEAST_SHARED and",
                "fair_share > 0 and",
                only=SHARED,
            ),
            Mutation(
                "one context is shared in place of others",
                "index -= _is_shared(item, fair_share, call, plan)",
                "index = 0",
                only=SHARED,
            ),
            Mutation(
                "Blocks of the first share",
                "first, last = task.first_block + begin, task.first_block + end",
                "first, last = task.first_block, task.first_block + end - begin",
                only=SHARED,
            ),
            Mutation(
                "vectors of the last share are left out",
                "share(task.num_vectors, nth, num_shares)",
                "share(task.num_vectors - 1, nth, num_shares)",
            ),
            Mutation(
                "columns of the last share are left out",
                "(head_dim + SHARED_COLUMNS - 1) // SHARED_COLUMNS",
                "head_dim // SHARED_COLUMNS",
            ),
            Mutation(
                "nobody waits for scores", "if phase in (SCORE, WEIGH):", "if phase == WEIGH:", only=SHARED
            ),
            Mutation(
                "shared contexts have the same place",
                "place = team.num_members + number",
                "place = team.num_members",
                only=SHARED,
            ),
        ),
    ),
    Table(
        "paged_attention/task.py",
        "paged_attention/test_paged_attention.py",
        (
            Mutation("heads of a group share a place", "* group + vector % group)", "* group)"),
            Mutation(
                "an item begins at the window of its second row",
                "least_hidden + 1 - call.window",
                "least_hidden + 2 - call.window",
            ),
            Mutation(
                "all columns of another one's share",
                "range(first_column, end_column):\n            store(out",
                "range(end_column - first_column):\n            store(out",
                only=SHARED,
            ),
            Mutation(
                "Blocks of the first head",
                "+ block] * call.num_kv_heads + task.head",
                "+ block] * call.num_kv_heads",
            ),
            Mutation(
                "tree: siblings are read",
                "or not hidden >> min(distance - 1, LAST_BIT) & 1",
                "or distance > 0",
            ),
            Mutation("tree: a place too near", ">> min(distance - 1,", ">> min(distance,"),
            Mutation(
                "tree: the oldest hidden place is read",
                "while hidden >> distance:",
                "while hidden >> distance > 1:",
            ),
        ),
    ),
    Table(
        "tile.py",
        "paged_attention/test_paged_attention.py",
        (
            Mutation(
                "wide tiles: columns repeat",
                "_WIDE, depth, _from_column(out, column)",
                "_WIDE, depth, out",
            ),
            Mutation(
                "rows of a tile repeat",
                "builder.mul(stride, ir.Constant(I64, row))",
                "builder.mul(stride, ir.Constant(I64, 0))",
            ),
            Mutation(
                "a register takes the values of the first",
                "[ir.Constant(I64, register * count)]",
                "[ir.Constant(I64, 0)]",
            ),
            Mutation("columns begin late", "matrix.start + column", "matrix.start + column + 1"),
        ),
    ),
    Table(
        "tile.py",
        "paged_attention/test_paged_attention.py",
        (
            Mutation(
                "even steps for odd ones",
                "add_product(builder.add(first, ir.Constant(I64, number)), chain)",
                "add_product(first, chain)",
            ),
            Mutation(
                "the last odd step is another",
                "builder.sub(depth, ir.Constant(I64, 1))",
                "builder.sub(depth, ir.Constant(I64, 2))",
            ),
            Mutation(
                "one of two sums is lost",
                "for chain in sums:\n                total",
                "for chain in sums[:1]:\n                total",
            ),
        ),
        runs_here=NARROW_SUMS == 2,
    ),
)
