"""What must not go unnoticed in the products of narrow weights."""

from kernels.product_chain import UNPACKS
from tests.kernels.mutation import Mutation, Table

NARROW_TESTS = "product_chain/test_narrow.py"
NARROW_TABLES = (
    Table(
        "product_chain/narrow.py",
        NARROW_TESTS,
        (
            Mutation(
                "one group of all columns",
                "group_size=numbers[6]",
                "group_size=numbers[8]",
                only="as_they_are and int4",
            ),
            Mutation(
                "no zero points",
                "if weight.zero_points else 0",
                "if weight.zero_points < 0 else 0",
                only="as_they_are and zero",
            ),
            Mutation(
                "every group is the first",
                "weight.num_groups + group) * TILE",
                "weight.num_groups) * TILE",
                only="as_they_are and int4-32",
            ),
            Mutation(
                "a group goes on into the next",
                "(group + 1) * weight.group_size)",
                "(group + 2) * weight.group_size)",
                only="as_they_are and int4-32",
            ),
            Mutation(
                "the depth of other rows",
                "depth=numbers[5],",
                "depth=numbers[5] // 2,",
                only="as_they_are",
            ),
            Mutation(
                "every panel is the first",
                "(place.panel * weight.in_features + column) // 2",
                "column // 2",
                only="as_they_are",
            ),
            Mutation(
                "rows from the first column on",
                "(first * depth + column) * itemsize",
                "first * depth * itemsize",
                only="as_they_are and int4-32",
            ),
            Mutation(
                "what is kept lies in one place",
                "START + column * TILE * itemsize",
                "START",
                only="as_they_are and 128-zero",
            ),
            Mutation(
                "no bias",
                "copy(TILE, bias, place.panel * TILE,",
                "copy(TILE, bias, 0,",
                only="as_they_are and nf4",
            ),
        ),
        runs_here=UNPACKS,
    ),
    Table(
        "product_chain/narrow_tile.py",
        NARROW_TESTS,
        (
            Mutation(
                "the rows of the result lie as those of the factors",
                "_emit(builder, signature, arguments, None)",
                "_emit(builder, signature, [*arguments[:-1], arguments[5]], None)",
                only="as_they_are and nf4",
            ),
            Mutation(
                "nothing is kept",
                "_emit(builder, signature, others, kept)",
                "_emit(builder, signature, others, None)",
                only="as_they_are and fp8",
            ),
            Mutation(
                "sums are not scaled",
                "builder.load(total), scale, before)",
                "builder.load(total), builder.fdiv(scale, scale), before)",
                only="as_they_are and int4-64",
            ),
            Mutation(
                "the last group counts alone",
                "before = builder.load(target, align=4)",
                "before = ir.Constant(FLOATS, None)",
                only="as_they_are and int4-32",
            ),
            Mutation(
                "every row is the first",
                "builder.mul(tile.x_stride, ir.Constant(I64, row))",
                "builder.mul(tile.x_stride, ir.Constant(I64, 0))",
                only="as_they_are and nf4",
            ),
            Mutation(
                "kept over each other",
                "builder.mul(word, ir.Constant(I64, REGISTERS))",
                "builder.mul(word, ir.Constant(I64, 0))",
                only="as_they_are and fp8",
            ),
        ),
        runs_here=UNPACKS,
    ),
    Table(
        "product_chain/levels.py",
        NARROW_TESTS,
        (
            Mutation(
                "channels change places",
                "_SHIFTS = range(0, 16, 4)",
                "_SHIFTS = range(12, -4, -4)",
                only="as_they_are and nf4",
            ),
            Mutation(
                "zero points of the first column of a pair only",
                "builder.or_(one, builder.shl(one, _words(16)))",
                "one",
                only="as_they_are and 128-zero and bf16",
            ),
            Mutation(
                "levels with those beside them",
                "builder.and_(half, _halves(_LEVEL))",
                "half",
                only="as_they_are and 128-zero and bf16",
            ),
            Mutation(
                "both columns are the first",
                "_words(16 * column + shift)",
                "_words(shift)",
                only="as_they_are and nf4 and f32",
            ),
            Mutation(
                "int8: columns change places",
                "[high, low]",
                "[low, high]",
                only="as_they_are and int8 and bf16",
            ),
            Mutation(
                "int8: both columns are the first",
                "for shift in (24, 16):",
                "for shift in (24, 24):",
                only="as_they_are and int8 and f32",
            ),
            Mutation(
                "fp8 without its sign", "_LEVEL, _SIGN = 0xF, 0x8000", "_LEVEL, _SIGN = 0xF, 0", only="worth"
            ),
            Mutation("fp8: small levels as others", "_halves(8 << 4)", "_halves(7 << 4)", only="worth"),
        ),
        runs_here=UNPACKS,
    ),
    Table(
        "product_chain/cpu.py",
        NARROW_TESTS,
        (
            Mutation(
                "a last panel is written as a whole",
                "if width == PANEL:",
                "if width <= PANEL:",
                only="as_they_are and nf4",
            ),
            Mutation(
                "every piece has the first rows",
                "call.levels + place.start * depth, panel * PANEL, panel",
                "call.levels, panel * PANEL, panel",
                only="stand_beside",
            ),
        ),
        runs_here=UNPACKS,
    ),
    Table(
        "simd.py",
        NARROW_TESTS,
        (
            Mutation(
                "all numbers are the last",
                "builder.gep(memory, [ir.Constant(I64, index)])",
                "builder.gep(memory, [ir.Constant(I64, 0)])",
                only="as_they_are and nf4",
            ),
        ),
        runs_here=UNPACKS,
    ),
)
