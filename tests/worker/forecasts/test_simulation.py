import pytest

from worker.forecasts import simulation
from worker.forecasts.ranges import Range
from worker.forecasts.simulation import Job, Machine
from worker.forecasts.work import BatchWork
from worker.values.step_costs import StepCosts

MACHINE = Machine(StepCosts(0.01, 0.001, 0.0001, 0.0, max_rows=64), num_rows=64, max_tokens=512)


def job(count: int, length: float, *, prompt: float = 0.0, tenant: str = "", priority: int = 0) -> Job:
    tokens = count * length
    work = BatchWork(count, count * prompt, Range(tokens, tokens, tokens), length, 0.0)
    return Job.of(work, tokens, tenant=tenant, priority=priority)


def seconds(own: Job, *others: Job, weights: dict[str, float] | None = None) -> float:
    return simulation.seconds(own, others, MACHINE, weights or {})


def test_one_request_takes_as_many_steps_as_it_has_tokens() -> None:
    assert seconds(job(1, 100)) == pytest.approx(100 * (0.01 + 0.001))


def test_what_fits_in_one_step_runs_together() -> None:
    assert seconds(job(64, 100)) == pytest.approx(100 * (0.01 + 64 * 0.001))


def test_more_than_that_runs_in_waves_whose_last_is_not_full() -> None:
    full = 0.01 + 64 * 0.001
    assert 6 * 100 * full < seconds(job(400, 100)) < 7 * 100 * full


def test_prompts_cost_by_their_tokens() -> None:
    assert seconds(job(8, 10, prompt=1000)) - seconds(job(8, 10)) == pytest.approx(0.8, rel=0.1)


def test_what_leaves_rows_free_costs_little_more_than_its_own() -> None:
    alone = seconds(job(4, 100))
    assert seconds(job(4, 100), job(20, 100)) == pytest.approx(alone + 100 * 20 * 0.001)


def test_a_small_batch_does_not_wait_for_a_whole_large_one() -> None:
    large = 5000, 100
    # Its half of the rows is more than it needs.
    assert seconds(job(2, 100), job(*large)) == pytest.approx(100 * (0.01 + 64 * 0.001), rel=0.02)
    assert seconds(job(*large), job(2, 100)) == pytest.approx(seconds(job(*large)), rel=0.01)


def test_batches_of_one_priority_take_turns_and_a_higher_one_goes_first() -> None:
    own = 640, 100
    alone = seconds(job(*own))
    assert seconds(job(*own), job(*own)) == pytest.approx(2 * alone, rel=0.1)
    assert seconds(job(*own), job(64, 100, priority=1)) == pytest.approx(alone + 7.4, rel=0.1)
    assert seconds(job(*own), job(6400, 100, priority=1)) == pytest.approx(11 * alone, rel=0.1)


def test_tenants_share_by_weight_whatever_their_priorities() -> None:
    own = 640, 100
    alone = seconds(job(*own, tenant="a"))
    other = job(64_000, 100, tenant="b", priority=9)
    assert seconds(job(*own, tenant="a"), other) == pytest.approx(2 * alone, rel=0.1)
    other = job(64_000, 100, tenant="b")
    third = seconds(job(*own, tenant="a"), other, weights={"a": 2.0, "b": 1.0})
    assert third == pytest.approx(1.5 * alone, rel=0.1)


def test_larger_steps_than_any_measured_lie_between_two_guesses() -> None:
    small = Machine(StepCosts(0.01, 0.001, 0.0, 0.0, max_rows=1), num_rows=64, max_tokens=512)
    low = simulation.seconds(job(64, 100), (), small.flat(), {})
    high = simulation.seconds(job(64, 100), (), small.proportional(), {})
    assert low == pytest.approx(100 * 0.011)
    assert high == pytest.approx(64 * 100 * 0.011)
