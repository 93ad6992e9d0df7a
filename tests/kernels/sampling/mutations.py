from tests.kernels.mutation import Mutation, Table

CASES = "draws_from_the_distribution"

TABLES = (
    Table(
        "sampling/kernel.py",
        "sampling/test_gpu.py",
        tuple(
            Mutation(name, before, after, only=CASES)
            for name, before, after in (
                ("the last of equals is likeliest", "is_better = value > best", "is_better = value >= best"),
                ("temperature in powers of e", "1.4426950408889634 / temperature", "1.0 / temperature"),
                ("target of no total", "tl.load(uniforms + row) * total", "tl.load(uniforms + row)"),
                ("a block forgets those before", "passed += tl.sum(weight, 0)", "passed = tl.sum(weight, 0)"),
                ("all equals at the cut stay", "        high = above\n", "        high = below\n"),
                ("one of equals too many", "quota = top_k - count", "quota = top_k - count + 1"),
                ("top-p of all tokens", "target = top_p * kept", "target = top_p"),
                ("equals at the cut weigh nothing", "kept += quota *", "kept += 0 *"),
                (
                    "one of equals too few",
                    "tl.ceil((target - mass) / weight)",
                    "tl.floor((target - mass) / weight)",
                ),
                (
                    "negative logits in the wrong order",
                    "return bits ^ ((bits >> 31) & 0x7FFFFFFF)",
                    "return bits",
                ),
                (
                    "a negative logit by its bits",
                    "return (key ^ ((key >> 31) & 0x7FFFFFFF)).to",
                    "return key.to",
                ),
                ("no maximum subtracted", "tl.exp2((value - largest) * scale)", "tl.exp2(value * scale)"),
                (
                    "at the bound is above it",
                    "(_key(value).to(tl.int64) > bound)",
                    "(_key(value).to(tl.int64) >= bound)",
                ),
                (
                    "the last of a quota is dropped",
                    "rank.to(tl.float64) <= quota",
                    "rank.to(tl.float64) < quota",
                ),
                ("min-p is ignored", "is_within & (weight >= min_p)", "is_within"),
            )
        ),
    ),
)
