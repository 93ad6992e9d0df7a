from tests.kernels.mutation import Mutation, Table

CASES = "draws_from_the_distribution"

TABLES = (
    Table(
        "sampling/cpu.py",
        "sampling/test_cpu.py",
        (
            Mutation("no temperature", "np.float32(1) / load(temperatures, row)", "np.float32(1)"),
            Mutation(
                "no maximum subtracted",
                "(load(logits, start + token) - largest)",
                "load(logits, start + token)",
            ),
            Mutation(
                "what is forbidden weighs a little",
                "power > LEAST_POWER and weight >= min_p",
                "weight >= min_p",
            ),
            Mutation("min-p is ignored", "power > LEAST_POWER and weight >= min_p", "power > LEAST_POWER"),
            Mutation("rows overlap", "start = row * row_stride\n", "start = row * (row_stride - 1)\n"),
            Mutation("a chunk forgets those before", "running += total", "running = total"),
            Mutation(
                "a chunk too far",
                "all_sums[sums + chunk] <= target:",
                "all_sums[sums + chunk] <= 2 * target:",
            ),
            Mutation("a chunk begins at nothing", "all_sums[sums + chunk - 1] if chunk else 0.0", "0.0"),
            Mutation("the token after", "chosen[row] = found", "chosen[row] = found + 1"),
            Mutation("the mask is turned round", "value if is_allowed else", "value if not is_allowed else"),
            Mutation("every mask is the first", "allowed[place * num_words + word]", "allowed[word]"),
            Mutation(
                "the last word is left out", "range(-(-vocab_size // WORD))", "range(vocab_size // WORD)"
            ),
        ),
    ),
    Table(
        "sampling/candidates.py",
        "sampling/test_candidates.py",
        (
            Mutation("one is left out", "for index in range(count):", "for index in range(1, count):"),
            Mutation("the place after", "    return place\n", "    return place + 1\n"),
            Mutation("of one chunk only", "token = first + _place_of", "token = _place_of"),
            Mutation(
                "no maximum subtracted",
                "exp(load(logits, start + token) - largest)",
                "exp(load(logits, start + token))",
            ),
            Mutation("shares of no total", "exp(found - largest) / total", "exp(found - largest)"),
            Mutation(
                "the largest again and again", "store(logits, start + token, np.float32(-np.inf))", "pass"
            ),
            Mutation(
                "a chunk's largest stays",
                "            store(all_maxima, maxima + chunk, found)\n\n\n@kernel\ndef find",
                "\n\n@kernel\ndef find",
            ),
            Mutation("rows overlap", "start, out = row * row_stride", "start, out = row * (row_stride - 1)"),
            Mutation(
                "what is not finite counts",
                "is_sound = is_sound and np.isfinite(found)",
                "is_sound = is_sound",
            ),
        ),
    ),
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
