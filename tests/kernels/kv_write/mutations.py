from tests.kernels.mutation import Mutation, Table

TABLES = (
    Table(
        "kv_write/kernel.py",
        "kv_write/test_gpu.py",
        (
            Mutation(
                "blocks of query heads leave one out",
                "head = program * BLOCK_HEADS",
                "head = program * (BLOCK_HEADS + 1)",
            ),
            Mutation(
                "value heads are counted on from keys",
                "kv_head -= kv_programs * BLOCK_HEADS",
                "kv_head -= BLOCK_HEADS",
            ),
            Mutation(
                "values are keys", "(NUM_HEADS + NUM_KV_HEADS + head)[:, None]", "(NUM_HEADS + head)[:, None]"
            ),
            Mutation(
                "values are stored over keys",
                "_store(blocks, scales, slot, NUM_KV_HEADS + head,",
                "_store(blocks, scales, slot, head,",
            ),
            Mutation("Slot 0 is taken for padding", "if slot >= 0:", "if slot > 0:"),
            Mutation("norm: no epsilon", "/ (2 * HALF) + eps)", "/ (2 * HALF))", only="True"),
            Mutation("norm: mean of a half", "squares / (2 * HALF)", "squares / HALF", only="True"),
            Mutation(
                "norm: weights of the first half",
                "tl.load(norm + HALF + index",
                "tl.load(norm + index",
                only="True",
            ),
            Mutation("turned the other way", "second * cos + first * sin", "second * cos - first * sin"),
            Mutation("sines are cosines", "tl.load(turn + HALF", "tl.load(turn"),
            Mutation(
                "Blocks lie half as far",
                "slot // BLOCK_SIZE * 2 * NUM_KV_HEADS",
                "slot // BLOCK_SIZE * NUM_KV_HEADS",
            ),
            Mutation(
                "the second half has no say in the scale",
                "tl.maximum(tl.max(tl.abs(first), 1), tl.max(tl.abs(second), 1))",
                "tl.max(tl.abs(first), 1)",
                only="quantizes",
            ),
            Mutation(
                "int8: cut instead of rounded",
                "return (x + 12582912.0) - 12582912.0",
                "return x",
                only="int8",
            ),
            Mutation("fp8: ties away from even", " + ((magnitude >> 20) & 1))", " + 1)", only="e4m3"),
            Mutation("fp8: subnormals begin lower", "< 0.015625", "< 0.0078125", only="e4m3"),
        ),
    ),
    Table(
        "kv_write/cpu.py",
        "kv_write/test_kv_write.py",
        (
            Mutation(
                "scale of another range",
                "largest / np.float32(127))",
                "largest / np.float32(128))",
                only="int8",
            ),
            Mutation(
                "negative numbers have no say",
                "abs(load(source, source_start + index))",
                "load(source, source_start + index)",
                only="int8",
            ),
            Mutation(
                "norm: no epsilon", "np.float32(head_dim) + np.float32(call.eps))", "np.float32(head_dim))"
            ),
            Mutation("norm: mean of a half", "squares / np.float32(head_dim)", "squares / np.float32(half)"),
            Mutation("norm: no weight", "* scale * load(norm, index)", "* scale"),
            Mutation(
                "angles of another position",
                "int64_at(call.positions)[row] * head_dim",
                "int64_at(call.positions)[row] // 2 * head_dim",
            ),
            Mutation("values are keys", "value = key + num_kv_heads * head_dim", "value = key"),
            Mutation(
                "values in their Block's first Slot",
                "line * call.block_size + offset",
                "line * call.block_size",
            ),
            Mutation(
                "keys in their Block's first Slot",
                "head_dim * call.block_size + offset",
                "head_dim * call.block_size",
            ),
            Mutation("heads of a group share a place", "* group + head % group)", "* group)"),
            Mutation("a row is left out", "write_rows(begin, end, part", "write_rows(begin + 1, end, part"),
        ),
    ),
    Table(
        "kv_write/rotation.py",
        "kv_write/test_kv_write.py",
        (
            Mutation(
                "turned the other way",
                "builder.fsub(builder.fmul(first, cos), builder.fmul(second, sin))",
                "builder.fadd(builder.fmul(first, cos), builder.fmul(second, sin))",
            ),
            Mutation("sines are cosines", "builder.fmul(first, sin)", "builder.fmul(first, cos)"),
            Mutation(
                "lanes of a key share a place",
                "builder.mul(builder.add(offset, ir.Constant(I64, lane)), stride)",
                "builder.mul(offset, stride)",
            ),
            Mutation("the last pair is left out", "while index < half:", "while index < half - 1:"),
        ),
    ),
    Table(
        "simd.py",
        "kv_write/test_kv_write.py",
        (
            Mutation("bfloat16 is cut", "builder.add(last, _constant(words, 0x7FFF))", "_constant(words, 0)"),
            Mutation("int8 is cut", '"llvm.rint.f32"', '"llvm.trunc.f32"', only="int8"),
            Mutation(
                "copies: the rest repeats",
                "_copy(1, source, source_start + index, target",
                "_copy(1, source, source_start, target",
            ),
            Mutation(
                "copies: registers repeat",
                "_copy(LANES, source, source_start + index, target",
                "_copy(LANES, source, source_start, target",
            ),
        ),
    ),
)
