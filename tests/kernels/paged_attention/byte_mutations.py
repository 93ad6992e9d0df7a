"""What can be wrong in attention over an int8 cache by byte products."""

from kernels.paged_attention.byte_vectors import HAS_BYTES
from tests.kernels.mutation import Mutation, Table

BYTE_TABLES = (
    Table(
        "paged_attention/bytes.py",
        "paged_attention/test_paged_attention.py",
        (
            Mutation("heads of any width", "call.head_dim % LANES == 0", "call.head_dim > 0", only="int8"),
            Mutation(
                "every Sequence has the first table",
                "plan.tables + task.entries * 8",
                "plan.tables",
                only="int8",
            ),
            Mutation(
                "scores in levels of queries", "step * np.float32(factor)", "np.float32(factor)", only="int8"
            ),
            Mutation(
                "queries of the first head",
                "(task.head * call.total_rows + task.first_row)",
                "task.first_row",
                only="int8",
            ),
            Mutation("only the tangent", "factor * tanh(", "tanh(", only="int8"),
            Mutation(
                "scores to the base e",
                "call.scale if call.soft_cap > 0 else call.scale * LOG2_E",
                "call.scale",
                only="int8",
            ),
            Mutation(
                "the window is one token narrower",
                "max(0, place + 1 - window)",
                "max(0, place + 2 - window)",
                only="int8",
            ),
            Mutation(
                "tree: the window begins with the place",
                "max(0, place - (window - count))",
                "max(0, last + 1 - window)",
                only="int8",
            ),
            Mutation("tree: nothing is hidden", "start + place, UNREAD)", "start + place, 0)", only="int8"),
            Mutation(
                "a row does not read itself",
                "int64_at(plan.places)[row] + 1",
                "int64_at(plan.places)[row]",
                only="int8",
            ),
            Mutation(
                "weights are worth what another float is",
                "Rows(start + line - 4, line)",
                "Rows(start + line - 8, line)",
                only="int8",
            ),
            Mutation(
                "weights of the first Blocks only",
                "(first - task.first_block) * NUM_BYTES * BLOCK",
                "0",
                only="long",
            ),
            Mutation(
                "scores of the first share",
                "column = task.scores + (first - task.first_block) * BLOCK",
                "column = task.scores",
                only="threads_share and int8",
            ),
            Mutation(
                "columns of the first share",
                "column = first_column",
                "column = 0",
                only="threads_share and int8",
            ),
            Mutation("sums of too many Blocks", "MOST_BLOCKS = 4096", "MOST_BLOCKS = 16384", only="long"),
        ),
        runs_here=HAS_BYTES,
    ),
    Table(
        "paged_attention/byte_tiles.py",
        "paged_attention/test_paged_attention.py",
        (
            Mutation(
                "keys are less than they are", "ir.Constant(I32, -128)", "ir.Constant(I32, -127)", only="int8"
            ),
            Mutation("queries have no lower bytes", "level = higher", "level = one", only="int8"),
            Mutation(
                "vectors have the first query",
                "_rows(builder, queries, count)",
                "_rows(builder, queries, 1) * count",
                only="int8",
            ),
            Mutation(
                "words of the same key",
                "byte * LANES + lane for lane",
                "byte + lane * WORD for lane",
                only="int8",
            ),
            Mutation("lower bytes of weights are upper ones", "(2, 1, 0, 3)", "(2, 1, 2, 3)", only="int8"),
            Mutation(
                "NaN is worth something",
                "builder.select(is_sound, worth,",
                "builder.select(is_sound, worth, worth) or (",
                only="nan",
            ),
            Mutation(
                "no maximum subtracted",
                "builder.fsub(scores, spread(builder, peak))",
                "scores",
                only="large_scores",
            ),
            Mutation("half of the weights are counted", "half * (LANES // 2) + lane", "lane", only="int8"),
            Mutation(
                "values have no scale",
                "builder.fmul(weight, scales)",
                "weight",
                only="int8",
            ),
            Mutation(
                "the largest scale is half of what it is",
                "builder.select(counts, scales, constant(FLOATS, 0.0))",
                "builder.fmul(scales, constant(FLOATS, 0.5))",
                only="int8",
            ),
            Mutation(
                "registers have the same columns", "int64(4 * LANES * register)", "int64(0)", only="int8"
            ),
            Mutation(
                "values of other tokens",
                "token * width + register * LANES + lane",
                "token + register * LANES + lane",
                only="int8",
            ),
        ),
        runs_here=HAS_BYTES,
    ),
    Table(
        "paged_attention/byte_vectors.py",
        "paged_attention/test_paged_attention.py",
        (
            Mutation(
                "upper bytes are worth no more",
                "constant(FLOATS, 256.0), lower",
                "constant(FLOATS, 1.0), lower",
                only="int8",
            ),
            Mutation(
                "the larger of half of the lanes",
                "halves = (list(range(count)), list(range(count, 2 * count)))",
                "halves = (list(range(count)), list(range(count)))",
                only="int8",
            ),
            Mutation("another exponential", "0.2402265070", "0.3402265070", only="int8"),
        ),
        runs_here=HAS_BYTES,
    ),
)
