from tests.kernels.mutation import Mutation, Table

TABLES = (
    Table(
        "expert_linear/kernel.py",
        "expert_linear/test_expert_linear.py",
        (
            Mutation("a tile goes to the expert before", "tile_ends <= tile", "tile_ends < tile"),
            Mutation(
                "weights of the first expert",
                "expert * rows_per_expert + rows, rows <",
                "rows, rows <",
            ),
            Mutation("tokens of the first expert", "tokens = first + tile", "tokens = tile"),
            Mutation(
                "tokens are taken for dense",
                "tokens.to(tl.int64)[None, :] * x_stride",
                "tokens.to(tl.int64)[None, :] * in_features",
            ),
            Mutation(
                "tiles that are not full are left out",
                "(ends - starts + BLOCK_M - 1) // BLOCK_M",
                "(ends - starts) // BLOCK_M",
            ),
            Mutation(
                "tiles are counted from the first expert on",
                "tile -= tl.max(tl.where(is_before, tile_ends, 0), 0)",
                "tile -= 0",
            ),
        ),
    ),
)
