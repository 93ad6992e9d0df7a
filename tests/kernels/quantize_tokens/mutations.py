from tests.kernels.mutation import Mutation, Table

TABLES = (
    Table(
        "quantize_tokens/kernel.py",
        "quantize_tokens/test_quantize_tokens.py",
        (
            Mutation("cut instead of rounded", "tl.where(value < 0, -0.5, 0.5)", "0.0", only="int8"),
            Mutation("negative numbers have no say", "tl.max(tl.abs(value), 0)", "tl.max(value, 0)"),
            Mutation("scale of another range", "maximum / LARGEST)", "maximum / (LARGEST + 1))"),
            Mutation("rows are taken for dense", "row * x_stride", "row * width"),
            Mutation("the last column is left out", "columns < width\n", "columns < width - 1\n"),
            Mutation("NaN is lost", "has_nan == 1", "has_nan == 2", only="nan"),
        ),
    ),
)
