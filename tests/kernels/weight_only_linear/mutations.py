from tests.kernels.mutation import Mutation, Table

TABLES = (
    Table(
        "weight_only_linear/kernel.py",
        "weight_only_linear/test_weight_only_linear.py",
        (
            Mutation(
                "int4's zero point is one off",
                "- (zero + 1024).to(tl.float16)",
                "- (zero + 1023).to(tl.float16)",
                only="int4",
            ),
            Mutation(
                "int8's zero point is dropped",
                "(levels.to(tl.int16) - zero).to(dtype)",
                "levels.to(dtype)",
                only="int8-zero",
            ),
            Mutation("nf4's level next door", "codebook + levels", "codebook + (levels ^ 1)", only="nf4"),
            Mutation("nested scales of wider blocks", "index // 256", "index // 512", only="long and nested"),
            Mutation(
                "nested scales without their mean",
                " + tl.load(nested_offset)\n",
                "\n",
                only="every_format and nested",
            ),
            Mutation("zero at seven", '8 if FORMAT == "int4"', '7 if FORMAT == "int4"', only="int4-64"),
            Mutation(
                "zero point of the first row", "zero_points + index", "zero_points + index * 0", only="zero"
            ),
            Mutation(
                "gemv: scale of the first group",
                "index = rows[:, None] * num_groups + (first // SPAN)[None, :]",
                "index = rows[:, None] * num_groups + (first // SPAN)[None, :] * 0",
                only="gemv and int4-64",
            ),
            Mutation(
                "gemv: high halves meet low columns",
                "tl.load(x + columns + 16,",
                "tl.load(x + columns,",
                only="gemv and int4-64",
            ),
            Mutation(
                "gemv: tokens are taken for dense",
                "x += token.to(tl.int64) * x_stride",
                "x += token.to(tl.int64) * in_features",
                only="gemv",
            ),
            Mutation(
                "gemv: no scale",
                "        sums *= load_scale(scales, nested_scales, nested_offset, rows, row_mask)\n",
                "        sums *= 1.0\n",
                only="gemv",
            ),
            Mutation(
                "tile: scale of the first group",
                "index = rows * num_groups + start // GROUP",
                "index = rows * num_groups + begin // GROUP",
                only="tile and int4-64",
            ),
            Mutation(
                "tile: low halves are lost",
                "part = tl.dot(decode(levels >> 4, zero, codebook, dtype, FORMAT), high_x, part)",
                "part = tl.dot(decode(levels >> 4, zero, codebook, dtype, FORMAT), high_x)",
                only="tile and int4-64",
            ),
            Mutation(
                "tile: levels of the first block",
                "(start // 2 + lanes)[None, :]",
                "(begin // 2 + lanes)[None, :]",
                only="tile and int4-64",
            ),
            Mutation(
                "tile: no scale",
                "total *= load_scale(scales, nested_scales, nested_offset, rows, row_mask)[:, None]",
                "total *= 1.0",
                only="tile and int8",
            ),
            Mutation(
                "tile: a split reads on into the next",
                "inside = columns < end",
                "inside = columns < in_features",
                only="split_may_end",
            ),
            Mutation(
                "splits overlap",
                "begin = tl.program_id(2) * split_size",
                "begin = tl.program_id(2) * (split_size - 32)",
                only="split and int8",
            ),
            Mutation(
                "sums of splits overlap",
                "out += tl.program_id(2).to(tl.int64) * num_tokens * out_features",
                "out += tl.program_id(2).to(tl.int64) * num_tokens * (out_features - 1)",
                only="split and int8",
            ),
            Mutation(
                "tile: tokens are taken for dense",
                "x + tokens.to(tl.int64)[None, :] * x_stride",
                "x + tokens.to(tl.int64)[None, :] * in_features",
                only="tile",
            ),
            Mutation(
                "the last split is left out", "in range(num_splits)", "in range(num_splits - 1)", only="split"
            ),
            Mutation(
                "a split is a row long",
                "source += num_tokens * out_features",
                "source += out_features",
                only="every_format and split",
            ),
            Mutation(
                "dense: scale of the first group",
                "index = row * num_groups + columns // GROUP",
                "index = row * num_groups + start // GROUP + columns * 0",
                only="dense and int4-64",
            ),
            Mutation(
                "dense: the low half twice",
                "tl.store(target + columns + 16, high.to(dtype)",
                "tl.store(target + columns + 16, low.to(dtype)",
                only="dense and int4-64",
            ),
            Mutation(
                "dense: scale of the first row",
                "else row + columns * 0\n",
                "else columns * 0\n",
                only="dense and int8",
            ),
        ),
    ),
    Table(
        "epilogue.py",
        "weight_only_linear/test_weight_only_linear.py",
        (
            Mutation(
                "no bias", "tile += tl.load(bias + rows", "tile += 0 * tl.load(bias + rows", only="gemv"
            ),
            Mutation(
                "gate and up change places",
                "gate / (1 + tl.exp(-gate)) * up",
                "up / (1 + tl.exp(-up)) * gate",
                only="gated and gemv",
            ),
            Mutation(
                "gated rows lie twice as far", "rows = row // 2 + ", "rows = row + ", only="gated and tile"
            ),
        ),
    ),
    Table(
        "weight_only_linear/cpu.py",
        "weight_only_linear/test_cpu.py",
        (
            Mutation(
                "zero points are added",
                "-zero * load(factors, row)",
                "zero * load(factors, row)",
                only="reference and zero",
            ),
            Mutation(
                "every tile has the scales of the first",
                "_set_factors(tile * call.num_groups + group,",
                "_set_factors(group,",
                only="more_rows",
            ),
            Mutation(
                "the table backwards",
                "load(float32_at(call.table), number)",
                "load(float32_at(call.table), 15 - number)",
                only="reference and int4-64",
            ),
            Mutation(
                "dequantized: every tile over the first",
                "call.out_features + tile * TILE\n",
                "call.out_features\n",
                only="many_tokens",
            ),
            Mutation(
                "a group goes on into the next",
                "min(end, (group + 1) * call.group_size) - column",
                "min(end, (group + 2) * call.group_size) - column",
                only="reference and int4-32",
            ),
            Mutation(
                "few rows: only the last panel counts",
                "load(scratch, totals + index) + load(scratch, panel + index)",
                "load(scratch, panel + index)",
                only="reference and int4-64",
            ),
            Mutation(
                "many rows: columns are unpacked over each other",
                "panel + (column - begin) * TILE",
                "panel",
                only="reference and int4-32",
            ),
            Mutation(
                "every tile is written over the first", "call.out_features + begin\n", "call.out_features\n"
            ),
            Mutation("no bias", "load(totals, at + index) + bias", "load(totals, at + index)"),
            Mutation("largest: of the first tile", "width, begin, first", "width, 0, first", only="largest"),
            Mutation(
                "the first panel is left out",
                "range(0, call.in_features, PANEL)",
                "range(PANEL, call.in_features, PANEL)",
            ),
        ),
    ),
    Table(
        "weight_only_linear/unpack.py",
        "weight_only_linear/test_cpu.py",
        (
            Mutation(
                "registers are written over each other",
                "ir.Constant(I64, register * LANES)",
                "ir.Constant(I64, 0)",
                only="reference and int4-64",
            ),
            Mutation(
                "few rows: every row is the first",
                "builder.mul(x_stride, ir.Constant(I64, row))",
                "builder.mul(x_stride, ir.Constant(I64, 0))",
                only="reference and int4-64",
            ),
            Mutation(
                "levels of a word in another order",
                "[4 * depth] * LANES",
                "[28 - 4 * depth] * LANES",
                only="reference and int4-64",
            ),
            Mutation(
                "few rows: two at most",
                "range(1, MOST_DIRECT_ROWS + 1)",
                "range(1, 3)",
                only="reference and int4-64",
            ),
            Mutation("fp8: the sign is an exponent", "0xBFFF", "0xFFFF", only="worth"),
        ),
    ),
)
