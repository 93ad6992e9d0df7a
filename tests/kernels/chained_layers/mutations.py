from tests.kernels.mutation import Mutation, Table

TABLES = (
    Table(
        "chained_layers/cpu.py",
        "chained_layers/test_chained_layers.py",
        (
            Mutation("layers of other columns", "number * 10", "number * 9"),
            Mutation("pieces of other columns", "number * 4\n", "number * 3\n"),
            Mutation("norms without their eps", "call.head_eps,", "0.0,"),
            Mutation("no window", "layer.window,\n    )", "1 << 62,\n    )", only="full"),
            Mutation("products without their eps", "call.eps,", "0.0,"),
            Mutation(
                "links of all layers have the same counters",
                "(number * call.num_layers + index) * COUNTERS",
                "number * COUNTERS",
            ),
            Mutation(
                "the last item of a piece is left out", "piece.end_item, team", "piece.end_item - 1, team"
            ),
            Mutation("attention has the counter of products", "(counter + MOST_LINKS) * 8", "counter * 8"),
            Mutation("rows of another piece", "piece.first_row + begin, piece", "begin, piece"),
            Mutation(
                "the last piece is left out",
                "for number in range(call.num_pieces)",
                "for number in range(call.num_pieces - 1)",
            ),
        ),
    ),
)
