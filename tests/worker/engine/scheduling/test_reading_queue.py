"""Readings go through the batch former: what its policies promise, seen from outside the engine."""

from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.clock import Clock
from tests.fixtures.generation import greedy, make_engine, requests_for
from tests.fixtures.readings import random_prompts, run_all
from worker.engine.engine import Engine
from worker.engine.requests.batch_policy import POLICIES, BatchPolicy, batch_policy
from worker.engine.requests.embedding import EmbeddingRequest
from worker.engine.requests.scoring import ScoringRequest
from worker.engine.scheduling.plan import StepPlan
from worker.values.requests import EmbeddingParams, Pooling


def engine_with(model: Path, clock: Clock, policy: BatchPolicy, **overrides: Any) -> Engine:
    return Engine(make_engine(model, batch_policy=policy, **overrides).config, clock=clock)


def embeddings(count: int, length: int, *, first_id: int = 0, priority: int = 0) -> list[EmbeddingRequest]:
    prompts = random_prompts(*[length] * count, seed=first_id)
    return [
        EmbeddingRequest(index, prompt, EmbeddingParams(Pooling.MEAN), priority=priority)
        for index, prompt in enumerate(prompts, first_id)
    ]


def ids(engine: Engine) -> list[Any]:
    return [reading.id for reading in engine.step().readings]


@pytest.mark.usefixtures("only_on_cpu")
def test_a_window_holds_readings_back_and_generation_goes_on(tiny_llama: Path) -> None:
    clock = Clock()
    engine = engine_with(tiny_llama, clock, BatchPolicy(window_seconds=2.0))
    engine.add(embeddings(1, 5)[0])
    assert (engine.has_unfinished, engine.wait_seconds, engine.num_waiting) == (True, 2.0, 1)
    assert engine.step() == engine.step()
    assert engine.stats.steps == 0
    clock.now += 1.5
    assert engine.wait_seconds == 0.5
    engine.add(requests_for(random_prompts(4), greedy(3), first_id=50)[0])
    assert engine.wait_seconds == 0.0
    assert engine.step().num_new_tokens == {50: 1}
    engine.add(embeddings(1, 6, first_id=1)[0])
    clock.now += 0.5
    output = engine.step()
    assert output.num_new_tokens == {50: 1}
    assert [reading.id for reading in output.readings] == [0, 1]
    assert engine.step().completions
    assert (engine.has_unfinished, engine.wait_seconds) == (False, None)


def test_a_fixed_size_fills_up_first(tiny_llama: Path) -> None:
    engine = engine_with(tiny_llama, Clock(), BatchPolicy(max_items=3, window_seconds=9.0))
    for request in embeddings(2, 5):
        engine.add(request)
    assert ids(engine) == []
    engine.add(embeddings(1, 5, first_id=2)[0])
    assert ids(engine) == [0, 1, 2]


def test_a_token_budget_leaves_the_rest_of_a_step_alone(tiny_llama: Path) -> None:
    engine = engine_with(tiny_llama, Clock(), BatchPolicy(max_tokens=25))
    for request in embeddings(5, 10):
        engine.add(request)
    assert [ids(engine) for _ in range(3)] == [[0, 1], [2, 3], [4]]


def test_priority_goes_first(tiny_llama: Path) -> None:
    engine = engine_with(tiny_llama, Clock(), BatchPolicy(max_items=2))
    for request in [*embeddings(3, 5), *embeddings(3, 5, first_id=10, priority=1)]:
        engine.add(request)
    # Whoever is urgent has a Step without those that are not, though both came in one batch.
    assert [set(ids(engine)) for _ in range(4)] == [{10, 11}, {12}, {0}, {1, 2}]


def test_length_buckets_run_apart(tiny_llama: Path) -> None:
    engine = engine_with(tiny_llama, Clock(), BatchPolicy(length_borders=(10,)))
    for request in [*embeddings(2, 4), *embeddings(2, 30, first_id=10), *embeddings(1, 9, first_id=20)]:
        engine.add(request)
    assert [ids(engine) for _ in range(2)] == [[0, 1, 20], [10, 11]]


def test_a_memory_limit_bounds_the_blocks_of_readings(tiny_llama: Path) -> None:
    share = 0.25
    engine = engine_with(tiny_llama, Clock(), BatchPolicy(max_memory_share=share), num_blocks=80)
    held: list[int] = []
    schedule = engine._scheduler.schedule

    def watch(num_steps: int) -> StepPlan:
        plan = schedule(num_steps)
        held.append(engine._scheduler.block_pool.num_blocks - engine._scheduler.block_pool.num_free_blocks)
        return plan

    engine._scheduler.schedule = watch  # type: ignore[method-assign]
    prompts = random_prompts(*[17] * 6)  # 5 Blocks each, or with 3 continuations 4 and 3 times 2
    scored = [
        ScoringRequest(index, prompt, [(5, 6, 7), (8, 9, 10), (11, 12, 13)])
        for index, prompt in enumerate(prompts, 100)
    ]
    run_all(engine, [*embeddings(9, 20), *scored])
    assert max(held) == 20 == share * 80


def test_a_batch_adapts_to_the_time_its_steps_take(tiny_llama: Path) -> None:
    clock = Clock()
    policy = BatchPolicy(latency_target_seconds=2.0, max_tokens=400)
    engine = engine_with(tiny_llama, clock, policy, max_num_sequences=64)
    execute = engine._runner.execute
    sizes: list[int] = []

    def slow(plan: StepPlan) -> Any:
        sizes.append(plan.num_tokens)
        clock.now += 1.0 + plan.num_tokens / 100
        return execute(plan)

    engine._runner.execute = slow  # type: ignore[method-assign]
    run_all(engine, embeddings(300, 10))
    assert sizes[0] == 400
    assert sizes[-3:-1] == [100, 100]  # one second and one for the tokens


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_brings_everything_to_its_end(tiny_llama: Path, name: str) -> None:
    clock = Clock()
    engine = engine_with(tiny_llama, clock, batch_policy(name), num_blocks=64)
    execute = engine._runner.execute

    def timed(plan: StepPlan) -> Any:
        clock.now += 0.01
        return execute(plan)

    engine._runner.execute = timed  # type: ignore[method-assign]
    requests = [*embeddings(10, 7), *embeddings(5, 70, first_id=20, priority=1)]
    scored = [
        ScoringRequest(60 + i, prompt, [(5, 6), (7,)]) for i, prompt in enumerate(random_prompts(9, 30))
    ]
    plain = run_all(make_engine(tiny_llama), [*requests, *scored])
    for request in [*requests, *scored, *requests_for(random_prompts(5, 6), greedy(9), first_id=90)]:
        engine.add(request)
    outcomes: dict[Any, Any] = {}
    while engine.has_unfinished:
        clock.now += engine.wait_seconds or 0.0
        output = engine.step()
        outcomes |= {one.id: one for one in (*output.readings, *output.completions)}
    assert len(outcomes) == 19
    for one in plain:
        other = outcomes[one.id]
        assert one.error is other.error is None
        if hasattr(one, "vector"):
            assert other.vector == pytest.approx(one.vector, abs=1e-5)
        else:
            logprobs = [score.logprob for score in one.continuations]
            assert [score.logprob for score in other.continuations] == pytest.approx(logprobs, abs=1e-4)


def test_cancelled_readings_leave_no_batch_open(tiny_llama: Path) -> None:
    engine = engine_with(tiny_llama, Clock(), BatchPolicy(max_items=2), max_tokens_per_step=8)
    for request in embeddings(4, 20):
        engine.add(request)
    engine.step()
    engine.cancel(0)
    engine.cancel(1)
    engine.cancel(1)
    assert ids(engine) == [0, 1]
    assert [one.id for one in run_all(engine, [])] == [2, 3]
