from tests.kernels.mutation import Mutation, Table

TABLES = (
    Table(
        "int8_linear/cpu.py",
        "int8_linear/test_int8_linear.py",
        (
            Mutation("cut instead of rounded", "np.float32(128.5)", "np.float32(128)"),
            Mutation("negative numbers have no say", "abs(load(x, start + index))", "load(x, start + index)"),
            Mutation("levels of another range", "np.float32(LARGEST) /", "np.float32(LARGEST - 1) /"),
            Mutation("rows overlap", "start = row * width", "start = row * (width - 1)"),
        ),
    ),
    Table(
        "simd.py",
        "int8_linear/test_int8_linear.py",
        (
            Mutation("the smaller of two", "llvm.maximum.f32", "llvm.minimum.f32"),
            Mutation(
                "a level too low",
                "builder.trunc(builder.fptosi(value, I32), _I8)",
                "builder.trunc(builder.lshr(builder.fptosi(value, I32), ir.Constant(I32, 1)), _I8)",
            ),
        ),
    ),
)
