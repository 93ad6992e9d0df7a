"""Verdicts of comparisons: how often they are wrong, and how many lines they take."""

import random
from collections import Counter
from collections.abc import Callable
from functools import cache
from math import comb, log

import pytest

from worker.quality.comparison import Pair, Tally, Verdict, compare, compare_outputs, compare_scores
from worker.quality.expected import Expected
from worker.quality.fixed import bootstrap_mean, mcnemar
from worker.quality.sequential import interval, log_capital, lower_bound, sample_size

DISCORDANCE = 0.2
Rule = Callable[[int, int], bool]


def differences(seed: int, loss: float, discordance: float = DISCORDANCE) -> Callable[[], float]:
    """Return a source of paired differences of 0/1 scores with a mean of -loss."""
    source = random.Random(seed)
    worse = (discordance + loss) / 2

    def draw() -> float:
        at = source.random()
        return -1.0 if at < worse else 1.0 if at < discordance else 0.0

    return draw


@cache
def says_worse(num_better: int, num_worse: int) -> bool:
    """Return what `interval` says of 0, without the bisection. Pairs that do not differ change nothing."""
    return log_capital({1.0: num_worse, -1.0: num_better}, 0.0) >= log(2 / 0.05)


@cache
def looked_at_as_often_as_one_likes(num_better: int, num_worse: int) -> bool:
    """The mistake: the p-value of one look at the end, after every line."""
    return num_worse > num_better and mcnemar(num_better, num_worse) < 0.05


def stopped_at(rule: Rule, seed: int, loss: float, most: int) -> int | None:
    draw, better, worse = differences(seed, loss), 0, 0
    for number in range(1, most + 1):
        value = draw()
        better += value > 0
        worse += value < 0
        if value < 0 and rule(better, worse):
            return number
    return None


def share_of_false_alarms(rule: Rule) -> float:
    return sum(stopped_at(rule, seed, 0.0, 600) is not None for seed in range(400)) / 400


def test_a_look_after_every_line_says_worse_of_the_same_configuration_rarely() -> None:
    assert share_of_false_alarms(says_worse) <= 0.025


def test_the_test_of_the_error_rate_notices_a_rule_for_one_look_only() -> None:
    assert share_of_false_alarms(looked_at_as_often_as_one_likes) > 0.06


def test_an_a_a_comparison_says_worse_in_one_of_twenty_at_most() -> None:
    most = sample_size(0.05, DISCORDANCE)
    assert sum(stopped_at(says_worse, seed, 0.0, most) is not None for seed in range(20)) <= 1


@pytest.mark.parametrize("loss", [0.05, 0.1, 0.2])
def test_a_planted_loss_is_found_within_the_sample_size_said_beforehand(loss: float) -> None:
    most = sample_size(loss, DISCORDANCE)
    stops = [stopped_at(says_worse, seed, loss, most) for seed in range(20)]
    assert None not in stops
    assert sorted(stop for stop in stops if stop)[10] > most / 10  # the size is of use, not just large


def test_the_shortcut_of_these_tests_is_the_verdict() -> None:
    draw, tally = differences(3, 0.1), Tally()
    for number in range(500):
        value = draw()
        tally.add(Pair(value == 0, 0.0 if value > 0 else 1.0, 1.0 if value >= 0 else 0.0))
        if number % 20 == 0:
            assert (compare(tally).verdict is Verdict.WORSE) == says_worse(
                tally.differences[1.0], tally.differences[-1.0]
            )
    assert compare(tally).verdict is Verdict.WORSE


def test_the_interval_contains_the_mean_and_shrinks() -> None:
    draw, counts, widths = differences(1, 0.1), Counter[float](), []
    for number in range(1, 4001):
        counts[draw()] += 1
        if number in {10, 100, 1000, 4000}:
            low, high = interval(counts)
            assert -1 <= low < -0.1 < high <= 1
            widths.append(high - low)
    assert widths == sorted(widths, reverse=True)
    assert widths[-1] < 0.08


def test_an_interval_holds_for_differences_of_any_size() -> None:
    source, misses = random.Random(5), 0
    for _ in range(60):
        counts = Counter(source.choice([-0.5, 0.25, 0.0]) for _ in range(200))
        low, high = interval(counts)
        misses += not low <= -1 / 12 <= high
    assert misses <= 3


def test_bounds_of_nothing_and_of_extremes() -> None:
    assert interval({}) == (-1, 1)
    assert lower_bound({-1.0: 10}, 0.05) == pytest.approx(-1)
    assert lower_bound({1.0: 1000}, 0.025) > 0.95
    assert interval({1.0: 1000})[1] == pytest.approx(1)


def test_verdicts_with_an_allowed_loss() -> None:
    same = compare(Tally(2000, 1980, 1500, 1500, Counter({0.0: 1980, 1.0: 10, -1.0: 10})), allowed_loss=0.03)
    assert same.verdict is Verdict.SAME
    assert same.more_lines is None
    worse = Counter({0.0: 1800, -1.0: 200})
    assert compare(Tally(2000, 1800, 1500, 1300, worse), allowed_loss=0.03).verdict is Verdict.WORSE
    assert compare(Tally(2000, 1800, 1500, 1300, worse), allowed_loss=0.2).verdict is Verdict.SAME
    assert compare(Tally(2000, 1800, 1300, 1500, Counter({1.0: 200}))).verdict is Verdict.BETTER


def test_an_undecided_comparison_says_how_many_more_lines_it_needs() -> None:
    counts = Counter({0.0: 80, 1.0: 10, -1.0: 10})
    found = compare(Tally(100, 80, 60, 60, counts), resolution=0.1)
    assert found.verdict is Verdict.UNDECIDED
    assert found.more_lines == sample_size(0.1, 20.5 / 101) - 100
    assert found.difference == 0
    assert found.p_value == 1
    nothing = compare([])
    assert (nothing.verdict, nothing.difference, nothing.quality_a) == (Verdict.UNDECIDED, None, None)
    assert nothing.more_lines == sample_size(0.05, 0.5)


def test_fewer_lines_find_a_larger_loss() -> None:
    sizes = [sample_size(loss, DISCORDANCE) for loss in (0.01, 0.02, 0.05, 0.1, 0.2)]
    assert sizes == sorted(sizes, reverse=True)
    assert sample_size(0.05, 0.05) < sample_size(0.05, 0.2) < sample_size(0.05, 0.5)
    for wrong in ((0, 0.1), (0.1, 2), (2, 0.1)):
        with pytest.raises(ValueError, match="must be"):
            sample_size(*wrong)


def test_outputs_are_compared_by_name_and_judged_by_their_reference() -> None:
    expected = {"x": Expected.from_json("1"), "y": Expected.from_json("2")}
    a = {"x": "1", "y": "2", "z": "free", "w": None, "only a": "1"}
    found = compare_outputs(a, {"x": "1", "y": None, "z": "free", "w": None}, expected)
    assert (found.num_lines, found.num_scored) == (4, 2)
    assert (found.agreement, found.quality_a, found.quality_b, found.num_worse) == (0.5, 1, 0.5, 1)


def test_scores_are_compared_in_order() -> None:
    found = compare_scores([1, 0.5, 0.5], [1, 0.75, 0])
    assert found.difference == pytest.approx(-0.25 / 3)
    assert (found.num_better, found.num_worse) == (1, 1)
    with pytest.raises(ValueError, match="from 0 to 1"):
        compare_scores([2], [1])
    with pytest.raises(ValueError, match="zip"):
        compare_scores([1], [])


def test_mcnemar_is_a_binomial_test() -> None:
    for better, worse in ((0, 0), (3, 3), (1, 9), (0, 6), (40, 22)):
        total = better + worse
        tail = sum(comb(total, k) for k in range(min(better, worse) + 1)) / 2**total
        assert mcnemar(better, worse) == pytest.approx(min(1, 2 * tail))
    assert mcnemar(20_000, 21_000) == pytest.approx(8e-7, rel=0.1)


def test_a_bootstrap_interval_is_seeded_and_covers() -> None:
    source = random.Random(2)
    draws = [[source.gauss(3, 1) for _ in range(50)] for _ in range(40)]
    assert bootstrap_mean(draws[0], seed=1) == bootstrap_mean(draws[0], seed=1)
    assert bootstrap_mean(draws[0], seed=1) != bootstrap_mean(draws[0], seed=2)
    covered = [low <= 3 <= high for low, high in map(bootstrap_mean, draws)]
    assert 33 <= sum(covered) <= 40
    low, high = bootstrap_mean([source.gauss(3, 1) for _ in range(5001)])
    assert 0.03 < high - low < 0.08
    with pytest.raises(ValueError, match="needs values"):
        bootstrap_mean([])
