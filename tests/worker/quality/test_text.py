"""What two configurations make of the same text."""

import random
from math import exp, log

import pytest

from worker.quality.text import compare_text, top_divergence


def distribution(source: random.Random, size: int) -> dict[str, float]:
    weights = [source.expovariate(1) for _ in range(size)]
    return {str(token): log(weight / sum(weights)) for token, weight in enumerate(weights)}


def divergence(a: dict[str, float], b: dict[str, float]) -> float:
    return sum(exp(a[token]) * (a[token] - b[token]) for token in a)


def test_what_is_reported_bounds_the_divergence_from_below() -> None:
    source, shown, there_is = random.Random(0), 0.0, 0.0
    for _ in range(50):
        a, b = distribution(source, 30), distribution(source, 30)
        whole = divergence(a, b)
        assert top_divergence(a, b) == pytest.approx(whole)
        for reported in (3, 8, 20):
            tops = [dict(sorted(one.items(), key=lambda item: -item[1])[:reported]) for one in (a, b)]
            found = top_divergence(*tops)
            assert 0 <= found <= whole + 1e-9
        shown, there_is = shown + found, there_is + whole
    assert shown > 0.2 * there_is
    assert top_divergence({"x": 0.0}, {"x": 0.0}) == 0
    assert top_divergence({"x": log(0.9)}, {"y": log(0.9)}) == 0, "nothing is shared"


def test_a_text_shows_how_much_worse_b_predicts_it() -> None:
    source = random.Random(1)
    covered, a, found = 0, [0.0], compare_text([0.0], [0.0], [0.0], 1)
    for _ in range(30):
        a = [-source.expovariate(0.4) for _ in range(1600)]
        b = [one - 0.02 + source.gauss(0, 0.1) for one in a]
        divergences = [source.expovariate(50) for _ in a]
        found = compare_text(a, b, divergences, 1500)
        low, high = found.change_interval
        assert low < found.change < high < low + 0.02
        covered += low <= exp(0.02) - 1 <= high
        assert found.divergence_interval[0] < found.divergence < found.divergence_interval[1]
    assert covered >= 26
    assert (found.num_tokens, found.agreement) == (1600, 1500 / 1600)
    assert found.perplexity_a == pytest.approx(exp(-sum(a) / 1600))
    assert found.perplexity_b / found.perplexity_a - 1 == pytest.approx(found.change)


def test_the_same_configuration_changes_nothing() -> None:
    found = compare_text([-1.0] * 5, [-1.0] * 5, [0.0] * 5, 5)
    assert (found.change, found.change_interval, found.divergence) == (0, (0, 0), 0)
    with pytest.raises(ValueError, match="zip"):
        compare_text([-1.0], [], [], 0)
    with pytest.raises(ValueError, match="needs values"):
        compare_text([], [], [], 0)
