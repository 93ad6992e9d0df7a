from tests.kernels.mutation import Mutation, Table

TABLES = (
    Table(
        "rms_norm/kernel.py",
        "rms_norm/test_gpu.py",
        (
            Mutation("no epsilon", "/ hidden + eps)", "/ hidden)"),
            Mutation("mean over the block", "/ hidden + eps", "/ BLOCK + eps"),
            Mutation("rows are taken for dense", "row * x_stride", "row * hidden"),
            Mutation("nothing is added", "value += tl.load(at", "value = tl.load(at"),
            Mutation("the last column is left out", "columns < hidden\n", "columns < hidden - 1\n"),
            Mutation("the residual keeps the norm", "tl.store(at, value.to", "tl.store(at, (2 * value).to"),
        ),
    ),
    Table(
        "rms_norm/cpu.py",
        "rms_norm/test_rms_norm.py",
        (
            Mutation("no epsilon", "np.float32(width) + np.float32(eps))", "np.float32(width))"),
            Mutation("mean over one more", "squares / np.float32(width)", "squares / np.float32(width + 1)"),
            Mutation("rows overlap", "start = row * width", "start = row * (width - 1)"),
            Mutation(
                "the residual is not kept",
                "store(residual, start + index, value)",
                "store(residual, start + index, load(x, start + index))",
            ),
            Mutation(
                "no weight",
                "load(residual, start + index) * scale * load(weight, index)",
                "load(residual, start + index) * scale",
            ),
        ),
    ),
)
