from tests.kernels.mutation import Mutation, Table

TABLES = (
    Table(
        "gate_mul/kernel.py",
        "gate_mul/test_gpu.py",
        (
            Mutation("a stretch starts a column late", "* BLOCK + tl.arange", "* (BLOCK + 1) + tl.arange"),
            Mutation("the last column is left out", "columns < width\n", "columns < width - 1\n"),
            Mutation("rows are taken for dense", "row * gate_up_stride", "row * 2 * width"),
            Mutation("up is one column off", "source + width,", "source + width - 1,"),
            Mutation("silu of the negative", "tl.exp(-gate)", "tl.exp(gate)", only="SILU"),
            Mutation(
                "square for cube", "0.044715 * gate * gate * gate", "0.044715 * gate * gate", only="GELU"
            ),
            Mutation("another constant", "0.7978845608028654", "0.8", only="GELU"),
        ),
    ),
    Table(
        "gate_mul/cpu.py",
        "gate_mul/test_gate_mul.py",
        (
            Mutation("up is the gate", "(2 * row + 1) * width", "2 * row * width"),
            Mutation("silu of the negative", "exp(-gate)", "exp(gate)", only="silu"),
            Mutation(
                "square for cube",
                "np.float32(0.044715) * gate * gate * gate",
                "np.float32(0.044715) * gate * gate",
                only="gelu",
            ),
            Mutation("no half", "np.float32(0.5) * gate", "gate", only="gelu"),
        ),
    ),
    Table(
        "simd.py",
        "gate_mul/test_gate_mul.py",
        (
            Mutation("a coefficient of the exponential", "5.0000001201e-1", "4.9000001201e-1", only="silu"),
            Mutation(
                "power of two off by one", "ir.Constant(I32, 127))", "ir.Constant(I32, 126))", only="silu"
            ),
            Mutation(
                "tangent of half the angle",
                "exp(np.float32(2.0) * x)",
                "exp(np.float32(1.0) * x)",
                only="gelu",
            ),
            Mutation(
                "bfloat16 loaded a bit too low",
                "_constant(words, 16)), lanes_of(F32, count)\n    )",
                "_constant(words, 15)), lanes_of(F32, count)\n    )",
                only="bf16",
            ),
        ),
    ),
)
