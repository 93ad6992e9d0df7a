"""Formats are chosen by what they cost."""

import itertools
import random

import pytest

from worker.engine.quantize.choice import FormatCost, choose

BYTES = {"exact": 160, "eight": 81, "four": 44, "larger four": 47}


def random_costs(seed: int, num_products: int) -> dict[int, dict[str, FormatCost]]:
    """Losses grow as bytes fall, more or less, and by product."""
    source = random.Random(seed)
    costs = {}
    for product in range(num_products):
        size, weight = source.choice((1, 4, 11)), source.expovariate(1)
        costs[product] = {
            name: FormatCost(
                size * num_bytes, 0.0 if name == "exact" else weight * source.random() / num_bytes
            )
            for name, num_bytes in BYTES.items()
        }
    return costs


def sums(costs: dict[int, dict[str, FormatCost]], chosen: dict[int, str]) -> tuple[int, float]:
    taken = [costs[product][name] for product, name in chosen.items()]
    return sum(one.num_bytes for one in taken), sum(one.loss for one in taken)


@pytest.mark.parametrize("seed", range(5))
def test_the_choice_is_within_the_budget_and_nearly_the_smallest(seed: int) -> None:
    costs = random_costs(seed, 6)
    every = [dict(enumerate(names)) for names in itertools.product(BYTES, repeat=6)]
    all_sums = [sums(costs, one) for one in every]
    for budget in (0.0, 0.005, 0.02, 0.1, 10.0):
        num_bytes, loss = sums(costs, choose(costs, budget))
        smallest = min(size for size, spent in all_sums if spent <= budget)
        assert loss <= budget
        assert smallest <= num_bytes <= 1.35 * smallest
    assert sums(costs, choose(costs, 10.0))[0] == min(size for size, _ in all_sums)
    assert set(choose(costs, 0.0).values()) == {"exact"}


def test_many_products_leave_little_of_the_budget() -> None:
    costs = random_costs(7, 300)
    sizes = []
    for budget in (0.1, 0.3, 0.6):
        num_bytes, loss = sums(costs, choose(costs, budget))
        assert 0.97 * budget < loss <= budget
        sizes.append(num_bytes)
    assert sizes == sorted(sizes, reverse=True)


def test_an_option_that_another_one_beats_is_never_chosen() -> None:
    costs = {0: {"exact": FormatCost(100, 0.0), "bad": FormatCost(60, 0.5), "good": FormatCost(50, 0.1)}}
    assert [choose(costs, budget)[0] for budget in (0.05, 0.1, 1.0)] == ["exact", "good", "good"]
    dear = {0: {"exact": FormatCost(100, 0.0), "middle": FormatCost(90, 0.4), "small": FormatCost(10, 0.5)}}
    assert [choose(dear, budget)[0] for budget in (0.4, 0.5)] == ["exact", "small"]
