from kernels.product_chain.factors import IS_WIDENED
from tests.kernels.mutation import Mutation, Table

TESTS = "panel_argmax/test_panel_argmax.py"

TABLES = (
    Table(
        "panel_argmax/cpu.py",
        TESTS,
        (
            Mutation(
                "each format by the other's product",
                "if call.format == BYTES:",
                "if call.format != BYTES:",
                only="of_the_product",
            ),
            Mutation(
                "every tile has the maxima of the first",
                "first,\n            float32_at(call.products)",
                "0,\n            float32_at(call.products)",
                only="of_the_product and int8",
            ),
            Mutation("padding counts", "min(PANEL, call.out_features - column)", "PANEL"),
            Mutation(
                "one row of levels for all",
                "first * depth,\n            depth,\n            int8_at",
                "0,\n            depth,\n            int8_at",
                only="of_the_product and int8",
            ),
            Mutation(
                "a part's rows are another's",
                "call.tokens + part * call.num_rows * 8",
                "call.tokens",
                only="part_that",
            ),
            Mutation(
                "the first panel is left out", "panel = take_next(counter, 0)\n    w", "panel = 1\n    w"
            ),
        ),
    ),
    Table(
        "panel_argmax/cpu.py",
        TESTS,
        (
            Mutation(
                "rounded rows by the product of others",
                "IS_WIDENED or call.format != PAIRS",
                "IS_WIDENED or call.format == PAIRS",
                only="not_rounded or (of_the_product and bf16)",
            ),
        ),
        runs_here=not IS_WIDENED,
    ),
    Table(
        "argmax.py",
        TESTS,
        (
            Mutation("the last of equal ones", "if found > before:", "if found >= before:", only="equal"),
            Mutation("the panel's first channel", "first_token + index", "first_token"),
            Mutation("NaN is forgotten", "maximum(before, found)", "found", only="finite"),
        ),
    ),
    Table(
        "argmax.py",
        "panel_argmax/test_merged.py",
        (
            Mutation("the last thread of equal ones", "found[at] < token", "found[at] > token"),
            Mutation("the first thread's", "logit > best or", "False or"),
            Mutation("infinity is a number", "is_sound &= logit < np.inf", "is_sound &= logit <= np.inf"),
            Mutation("no number is one", "is_sound and best > -np.inf", "is_sound"),
        ),
    ),
)
