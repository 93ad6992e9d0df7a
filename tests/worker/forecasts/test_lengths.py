import random

import pytest

from worker.forecasts.lengths import LearnedLengths, even_curve
from worker.store.watching.outlook import SeenOutput


def seen(*lengths: int, limit: int) -> list[SeenOutput]:
    """Outputs of these lengths; those as long as the limit were cut by it."""
    return [SeenOutput(length, limit, length == limit) for length in lengths]


def drawn(draw: random.Random, mean: float, limit: int, count: int) -> list[SeenOutput]:
    """Outputs that end as likely after any token, as a limit leaves them."""
    lengths = (min(limit, max(1, round(draw.expovariate(1 / mean)))) for _ in range(count))
    return seen(*lengths, limit=limit)


def test_no_more_is_expected_than_the_limits_allow() -> None:
    learned = LearnedLengths([seen(40, 60, 90, 100, limit=100)])
    total = learned.expect([8] * 2000)
    assert (total.low, total.expected, total.high) == (16_000, 16_000, 16_000), "none ended before 40"
    assert learned.at_limit([8] * 2000) == 2000


def test_what_ends_early_is_left_out_and_told() -> None:
    draw = random.Random(1)
    learned = LearnedLengths([drawn(draw, 20, 200, 64) for _ in range(10)])
    total = learned.expect([8] * 2000)
    truth = 2000 * sum(2.718281828 ** (-t / 20) for t in range(8))
    assert total.expected == pytest.approx(truth, rel=0.06)
    assert total.low < truth < total.high < 16_000
    assert learned.at_limit([8] * 2000) == pytest.approx(2000 * 0.68, rel=0.1)


def test_an_output_that_was_cut_would_have_gone_on() -> None:
    draw = random.Random(2)
    cut_early = LearnedLengths([drawn(draw, 50, 32, 64) for _ in range(20)])
    # Half of them were cut at 32. Those that ended before say that few end before 64 either.
    assert cut_early.expect([64]).high == 64
    assert cut_early.expect([64]).expected > 40


def test_outputs_with_a_like_limit_count_for_more() -> None:
    short = [seen(*[3] * 30, limit=8) for _ in range(5)]
    long = [seen(*[400] * 30, limit=512) for _ in range(5)]
    learned = LearnedLengths([*short, *long])
    assert learned.expect([8]).expected < 4
    assert learned.expect([512]).expected > 3 * 100


def test_batches_that_differ_make_a_wide_range() -> None:
    draw = random.Random(3)
    alike = LearnedLengths([drawn(draw, 40, 200, 64) for _ in range(10)]).expect([200] * 300)
    unlike = LearnedLengths([drawn(draw, mean, 200, 64) for mean in (10, 20, 40, 80, 160) * 2])
    apart = unlike.expect([200] * 300)
    assert apart.high / apart.low > 1.5 * alike.high / alike.low


def test_the_truth_is_within_what_is_stated_nine_times_in_ten() -> None:
    draw = random.Random(4)
    hits = 0
    past = [drawn(draw, 30 * draw.lognormvariate(0, 0.4), 120, 64) for _ in range(20)]
    for _ in range(100):
        new = drawn(draw, 30 * draw.lognormvariate(0, 0.4), 120, draw.choice([1, 5, 40, 300]))
        stated = LearnedLengths(past).expect([120] * len(new))
        hits += stated.low <= sum(one.num_tokens for one in new) <= stated.high
        past = [new[:64], *past[:-1]]
    assert 82 <= hits <= 98


def test_a_curve_knows_what_is_still_to_come() -> None:
    curve = even_curve(200, 1 / 50)
    fresh, _ = curve.expect(200)
    begun, _ = curve.expect(200, begun=100)
    assert fresh == pytest.approx(50 * (1 - 2.718281828**-4), rel=0.05)
    assert begun == pytest.approx(50 * (1 - 2.718281828**-2), rel=0.05), "it does not remember"
    assert curve.expect(200, factor=3.0)[0] < fresh


def test_without_a_past_anything_may_be() -> None:
    total = LearnedLengths([]).expect([10] * 3)
    assert (total.low, total.expected, total.high) == (3, 30, 30)
