from tests.kernels.mutation import Mutation, Table

TABLES = (
    Table(
        "scaled_linear/kernel.py",
        "scaled_linear/test_scaled_linear.py",
        (
            Mutation("no scale of tokens", "* x_scale[:, None] *", "*"),
            Mutation(
                "scale of the next row",
                "tl.load(scales + rows, mask=rows < out_features",
                "tl.load(scales + rows + 1, mask=rows < out_features - 1",
            ),
            Mutation(
                "tokens overlap",
                "x_rows = x + tokens.to(tl.int64) * in_features",
                "x_rows = x + tokens.to(tl.int64) * (in_features - 1)",
            ),
            Mutation(
                "a split reads on into the next",
                "inside = columns < end",
                "inside = columns < in_features",
                only="split_may_end",
            ),
            Mutation(
                "few tokens: earlier blocks are forgotten",
                "tl.dot(w, a, total, out_dtype=SUM)",
                "tl.dot(w, a, out_dtype=SUM)",
                only="swapped and matches",
            ),
            Mutation(
                "many tokens: earlier blocks are forgotten",
                "tl.dot(a, w, total, out_dtype=SUM)",
                "tl.dot(a, w, out_dtype=SUM)",
                only="tile and matches",
            ),
            Mutation(
                "sums of splits overlap",
                "target = out + tl.program_id(2).to(tl.int64) * num_tokens * out_features",
                "target = out + tl.program_id(2).to(tl.int64) * num_tokens * (out_features - 1)",
                only="split and matches",
            ),
            Mutation(
                "the last split is left out",
                "in range(num_splits)",
                "in range(num_splits - 1)",
                only="split and matches",
            ),
            Mutation(
                "a split is a row long",
                "source += num_tokens * out_features",
                "source += out_features",
                only="split and matches",
            ),
        ),
    ),
    Table(
        "epilogue.py",
        "scaled_linear/test_scaled_linear.py",
        (
            Mutation(
                "tiles are numbered as in a grid of another shape",
                "tl.num_programs(1), tl.num_programs(0), 8)",
                "tl.num_programs(0), tl.num_programs(1), 8)",
                only="tiles_of_tokens",
            ),
            Mutation(
                "tiles of tokens and of rows change places",
                "tl.swizzle2d(tl.program_id(1), tl.program_id(0), ",
                "tl.swizzle2d(tl.program_id(0), tl.program_id(1), ",
                only="tiles_of_tokens",
            ),
        ),
    ),
)
