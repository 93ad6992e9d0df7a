from tests.kernels.mutation import Mutation, Table

TESTS = "int8_chain/test_int8_chain.py"

TABLES = (
    Table(
        "int8_chain/cpu.py",
        TESTS,
        (
            Mutation("a table of other columns", "number * 11", "number * 12"),
            Mutation("a norm without its eps", "np.float32(width) + np.float32(eps)", "np.float32(width)"),
            Mutation("the residual is replaced", "load(residual, total_at + index) + load", "load"),
            Mutation("silu of the negative", "exp(-gate)", "exp(gate)", only="silu"),
            Mutation("square for cube", "gate * gate * gate", "gate * gate", only="gelu"),
            Mutation("every gate is silu", "link.after == GELU", "link.after == SILU", only="gelu"),
            Mutation("cut instead of rounded", "np.float32(ZERO + 0.5)", "np.float32(ZERO)"),
            Mutation("rows of another token's size", "total * largest", "total"),
            Mutation("no bias", " + load(bias, column + index)", "", only="bias"),
            Mutation(
                "another member's rows",
                "_follow(before, row, place, call)",
                "_follow(before, begin, place, call)",
            ),
            Mutation(
                "the result begins late",
                "(place.first_row + row) * link.out_features\n        for",
                "(place.first_row + row + 1) * link.out_features\n        for",
            ),
            Mutation(
                "pieces write where others do",
                "start = place.first_row * stride",
                "start = place.start * stride",
            ),
            Mutation(
                "a piece is skipped", "piece * rows, num_rows, part * rows", "piece, num_rows, part * rows"
            ),
        ),
    ),
    Table(
        "int8_chain/tile.py",
        TESTS,
        (
            Mutation(
                "rows lie closer",
                "builder.mul(stride, ir.Constant(I64, row))",
                "builder.mul(stride, ir.Constant(I64, 0))",
            ),
            Mutation(
                "zero levels count",
                "start = builder.load(nth(offsets, register), align=4)",
                "start = ir.Constant(_VECTOR, None)",
            ),
        ),
    ),
    Table(
        "int8_chain/levels.py",
        TESTS,
        (
            Mutation("negative numbers have no say", "_ABSOLUTE = 0x7FFFFFFF", "_ABSOLUTE = 0x3FFFFFFF"),
            Mutation(
                "the first vector has all the say",
                "builder.udiv(count, ir",
                "builder.udiv(ir.Constant(I64, 16), ir",
            ),
            Mutation(
                "levels without zero",
                "builder.fadd(builder.fmul(value, _spread(builder, step)), _spread(builder, zero))",
                "builder.fmul(value, _spread(builder, step))",
            ),
        ),
    ),
    Table(
        "threads.py",
        TESTS,
        (
            Mutation(
                "all products have one counter",
                "pointer = builder.gep(arguments[0], [arguments[1]])",
                "pointer = builder.gep(arguments[0], [ir.Constant(_I64, 0)])",
            ),
            Mutation(
                "a counter skips",
                'builder.atomic_rmw("add", pointer, ir.Constant(_I64, 1), "acq_rel")',
                'builder.atomic_rmw("add", pointer, ir.Constant(_I64, 2), "acq_rel")',
            ),
        ),
    ),
)
