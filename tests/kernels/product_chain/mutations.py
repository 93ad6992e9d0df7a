from kernels.product_chain.factors import IS_WIDENED
from tests.kernels.mutation import Mutation, Table
from tests.kernels.product_chain.narrow_mutations import NARROW_TABLES

TESTS = "product_chain/test_product_chain.py"

TABLES = (
    Table(
        "product_chain/cpu.py",
        TESTS,
        (
            Mutation("a table of other columns", "number * 13", "number * 12"),
            Mutation("a norm without its eps", "np.float32(width) + np.float32(eps)", "np.float32(width)"),
            Mutation("the residual is replaced", "load(residual, total_at + index) + load", "load"),
            Mutation("silu of the negative", "exp(-gate)", "exp(gate)", only="silu"),
            Mutation("square for cube", "gate * gate * gate", "gate * gate", only="gelu"),
            Mutation("every gate is silu", "link.after == GELU", "link.after == SILU", only="gelu"),
            Mutation(
                "each format by the other's product",
                "if link.format == BYTES:\n        multiply_bytes",
                "if link.format != BYTES:\n        multiply_bytes",
            ),
            Mutation("every panel is whole", "stride - column >= PANEL", "stride - column >= 0"),
            Mutation(
                "a panel that is not whole has one column",
                "load(target, row * PANEL + index)",
                "load(target, row * PANEL)",
            ),
            Mutation(
                "every tile has the maxima of the first", "row,\n            out,", "0,\n            out,"
            ),
            Mutation(
                "float32 as pairs",
                "elif link.format == FLOATS:\n        multiply_floats",
                "elif link.format == 9:\n        multiply_floats",
                only="f32",
            ),
            Mutation(
                "each row has the factors of the first",
                "call.depth, call.maxima, row)",
                "call.depth, call.maxima, 0)",
            ),
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
        "product_chain/tile.py",
        TESTS,
        (
            Mutation(
                "rows beyond the last whole tile are left out",
                "(num_rows + TILE_ROWS - 1) // TILE_ROWS",
                "max(1, num_rows // TILE_ROWS)",
            ),
            Mutation(
                "rows lie closer",
                "builder.mul(tile.stride, ir.Constant(I64, row))",
                "builder.mul(tile.stride, ir.Constant(I64, 0))",
            ),
            Mutation(
                "zero levels count",
                "[_nth_register(builder, offsets, column, register) for register in range(_REGISTERS)]",
                "[ir.Constant(_VECTOR, None)] * _REGISTERS",
            ),
            Mutation(
                "rows of another token's size",
                "[builder.add(first_row, ir.Constant(I64, row)) for row in range(len(totals))]",
                "[first_row for row in range(len(totals))]",
            ),
            Mutation(
                "no bias", "_fused(builder, *factors, more)", "builder.fmul(*factors)", only="bias and int8"
            ),
            Mutation("no bias in bfloat16", "builder.fadd(total, more)", "total", only="bias and bf16"),
            Mutation(
                "the scales of another panel",
                "builder.bitcast(builder.gep(numbers, [start]), kind.as_pointer())",
                "builder.bitcast(numbers, kind.as_pointer())",
            ),
            Mutation(
                "sums of bfloat16 begin with one",
                "ir.Constant(_FLOATS, None)",
                "ir.Constant(_FLOATS, [1.0] * _LANES)",
                only="bf16",
            ),
            Mutation("the wrong half of a pair", "0xFFFF0000", "0x0000FFFF", only="widened"),
            Mutation(
                "float32 as if it were pairs",
                "OF_FLOATS if panels.dtype == types.float32 else",
                "OF_WIDENED_PAIRS if panels.dtype == types.float32 else",
                only="f32",
            ),
        ),
    ),
    Table(
        "product_chain/tile.py",
        TESTS,
        (
            Mutation(
                "rounded rows as if they were float32",
                "_product_of_floats(OF_PAIRS, x",
                "_product_of_floats(OF_WIDENED_PAIRS, x",
                only="bf16",
            ),
        ),
        runs_here=not IS_WIDENED,
    ),
    Table(
        "product_chain/cpu.py",
        TESTS,
        (
            Mutation(
                "rounded rows by the product of others",
                "IS_WIDENED or link.format != PAIRS",
                "IS_WIDENED or link.format == PAIRS",
                only="widened or bf16",
            ),
        ),
        runs_here=not IS_WIDENED,
    ),
    Table(
        "product_chain/factors.py",
        TESTS,
        (
            Mutation("cut instead of rounded", "np.float32(ZERO + 0.5)", "np.float32(ZERO)"),
            Mutation(
                "the last levels lie in one place",
                "store_level(levels, at, value)",
                "store_level(levels, begin, value)",
                only="product and int8",
            ),
            Mutation(
                "the last number has all the say in the last levels",
                "_store_level(levels, begin, index, load",
                "_store_level(levels, begin, width - 1, load",
                only="product and int8",
            ),
            Mutation(
                "each row of floats lies where the first does",
                "float32_at(factors + row * depth)",
                "float32_at(factors)",
                only="f32",
            ),
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
        "product_chain/factors.py",
        "panel_argmax/test_panel_argmax.py",
        (
            Mutation("each row is the first", "row * width, factors", "0, factors", only="of_the_product"),
            Mutation(
                "each format is another",
                "(format_, num_rows",
                "(3 - format_, num_rows",
                only="of_the_product",
            ),
        ),
    ),
    Table(
        "product_chain/rows.py",
        "product_chain/test_rows.py",
        (
            Mutation(
                "the first row of each panel",
                "row // PANEL * num_words, row % PANEL",
                "row // PANEL * num_words, 0",
            ),
            Mutation("every row of the first panel", "row // PANEL * num_words, row", "0, row"),
            Mutation("levels without their scale", "value * step)", "value)"),
            Mutation("every row is the first", "int64_at(rows)[place]", "int64_at(rows)[0]"),
            Mutation(
                "scales in the order of the rows", "float32_at(scales), row)", "float32_at(scales), place)"
            ),
            Mutation("float32 as pairs", "elif format_ == FLOATS", "elif format_ == 9", only="f32"),
            Mutation("one of each pair", "min(2, in_features - word * 2)", "min(1, in_features - word * 2)"),
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
    *NARROW_TABLES,
)
