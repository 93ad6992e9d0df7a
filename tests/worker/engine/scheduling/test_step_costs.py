import random
from pathlib import Path

import pytest

from tests.fixtures.generation import greedy, make_engine, requests_for, run
from worker.engine.scheduling.step_costs import LEAST_STEPS, CostEstimator
from worker.values.step_costs import StepCosts

STEP, ROW, TOKEN, CONTEXT = 0.015, 0.0009, 0.0001, 4e-7


def seconds(rows: float, tokens: float, context: float) -> float:
    return STEP + ROW * rows + TOKEN * tokens + CONTEXT * context


def measure(
    costs: CostEstimator, *, rows: int, tokens: int, context: float, count: int = 1, noise: float = 1.0
) -> None:
    for _ in range(count):
        costs.add_measured(rows, tokens, context, noise * seconds(rows, tokens, context))


def fit(costs: CostEstimator) -> StepCosts:
    found = costs.fit()
    assert found is not None
    return found


def predict(costs: StepCosts, rows: float, tokens: float, context: float) -> float:
    return costs.step + costs.row * rows + costs.token * tokens + costs.context * context


def mixed(costs: CostEstimator, draw: random.Random, *, noise: float = 0.0) -> None:
    for _ in range(2000):
        rows = draw.choice([1, 2, 5, 11, 24, 40, 64])
        tokens = draw.choice([0, 0, 30, 120, 440])
        context = draw.uniform(50, 800) * rows + draw.uniform(50, 400) * tokens
        factor = draw.lognormvariate(0, noise)
        costs.add_measured(rows, tokens, context, factor * seconds(rows, tokens, context))


def test_it_recovers_what_steps_cost() -> None:
    costs = CostEstimator()
    mixed(costs, random.Random(1))
    found = fit(costs)
    assert found.step == pytest.approx(STEP, rel=0.02)
    assert found.row == pytest.approx(ROW, rel=0.02)
    assert found.token == pytest.approx(TOKEN, rel=0.05)
    assert found.context == pytest.approx(CONTEXT, rel=0.05)
    assert found.max_rows == 64


def test_it_is_right_on_the_whole_when_steps_scatter() -> None:
    costs = CostEstimator()
    mixed(costs, random.Random(2), noise=0.4)
    mean = 1.083  # of that noise
    for rows, tokens, context in ((1, 0, 300), (64, 0, 20_000), (30, 400, 90_000)):
        assert predict(fit(costs), rows, tokens, context) == pytest.approx(
            mean * seconds(rows, tokens, context), rel=0.15
        )


def test_small_batches_do_not_poison_it() -> None:
    costs = CostEstimator()
    mixed(costs, random.Random(3))
    measure(costs, rows=1, tokens=0, context=300, count=20_000)
    found = fit(costs)
    # A rate learned from whole batches would say 60 tokens a second here, and 64 rows make 880.
    assert 64 / predict(found, 64, 0, 20_000) == pytest.approx(64 / seconds(64, 0, 20_000), rel=0.05)


def test_nothing_costs_less_than_nothing() -> None:
    costs = CostEstimator()
    draw = random.Random(4)
    for _ in range(400):  # larger Steps that happened to be the quicker ones
        rows = draw.choice([1, 8, 64])
        costs.add_measured(rows, 0, 100.0 * rows, 0.05 / rows)
    found = fit(costs)
    assert min(found.step, found.row, found.token, found.context) >= 0


def test_it_follows_a_machine_that_becomes_slower() -> None:
    costs = CostEstimator()
    mixed(costs, random.Random(5))
    for _ in range(1500):
        for rows in (1, 8, 64):
            measure(costs, rows=rows, tokens=0, context=300.0 * rows, noise=3.0)
    for rows in (1, 8, 64):
        truth = 3 * seconds(rows, 0, 300.0 * rows)
        assert predict(fit(costs), rows, 0, 300.0 * rows) == pytest.approx(truth, rel=0.15)


def test_too_little_says_nothing_and_the_first_step_of_a_size_is_left_out() -> None:
    costs = CostEstimator()
    costs.add_measured(4, 0, 100.0, 15.0)  # it compiled
    measure(costs, rows=4, tokens=0, context=100.0, count=LEAST_STEPS - 1)
    assert costs.fit() is None
    measure(costs, rows=4, tokens=0, context=100.0)
    assert predict(fit(costs), 4, 0, 100.0) == pytest.approx(seconds(4, 0, 100.0), rel=0.01)


def test_an_engine_measures_its_steps(tiny_llama: Path) -> None:
    engine = make_engine(tiny_llama)
    run(engine, requests_for([[1, 2, 3] * 5, [4, 5, 6, 7]], greedy(8)))
    assert engine.costs is None, "too few"
    run(engine, requests_for([[1, 2, 3] * 5, [4, 5, 6, 7]], greedy(48)))
    found = engine.costs
    assert found is not None
    assert predict(found, 2, 0, 30) > 0
    assert found.max_rows == 2
