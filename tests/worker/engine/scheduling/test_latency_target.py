"""The limits of Steps follow the time of requests, and stay once it is what was asked for."""

from pathlib import Path

import pytest

from tests.fixtures.generation import greedy, make_engine, requests_for, run
from worker.engine.requests.config import EngineConfig
from worker.engine.requests.errors import ConfigError
from worker.engine.scheduling.latency_target import NUM_MEASURED, LatencyTarget
from worker.engine.scheduling.step_limits import StepLimits


def simulate(
    target: LatencyTarget, limits: StepLimits, *, rounds: int, each: float = 0.01, now: float = 0.0
) -> list[int]:
    """Run full batches, whose requests take `each` seconds for every Sequence; return the limits."""
    seen = []
    for _ in range(rounds):
        number = limits.max_num_sequences
        started_at, now = now, now + each * number
        for _ in range(number):
            target.ended(started_at, now, number)
        seen.append(limits.max_num_sequences)
    return seen


@pytest.mark.parametrize("first", [1, 64])
def test_it_settles_within_the_target_and_stays_there(first: int) -> None:
    limits = StepLimits(64, 512)
    target = LatencyTarget(0.3, limits)
    if first == 1:
        simulate(target, limits, rounds=200, each=1.0)
        assert limits.max_num_sequences == 1
    seen = simulate(target, limits, rounds=300, now=1e6)
    assert 0.8 * 30 <= seen[-1] <= 30
    assert len(set(seen[-100:])) == 1, "it moves on and on"
    assert limits.max_tokens == max(64, 512 * seen[-1] // 64)


def test_it_stays_between_one_and_the_configured_limits() -> None:
    limits = StepLimits(8, 64)
    assert set(simulate(LatencyTarget(1e-9, limits), limits, rounds=99)[-9:]) == {1}
    assert limits.max_tokens == 8, "every Sequence that still runs needs its token"
    limits = StepLimits(8, 64)
    assert set(simulate(LatencyTarget(1e9, limits), limits, rounds=20)) == {8}


def test_requests_that_began_under_other_limits_do_not_count() -> None:
    limits = StepLimits(64, 512)
    target = LatencyTarget(1.0, limits)
    for _ in range(5 * NUM_MEASURED):
        target.ended(0.0, 9.0, 64)
    assert (limits.max_num_sequences, target.num_cuts) == (48, 1)


def test_it_counts_from_what_runs() -> None:
    limits = StepLimits(64, 512)
    target = LatencyTarget(1.0, limits)
    for _ in range(NUM_MEASURED):
        target.ended(0.0, 9.0, 20)
    assert limits.max_num_sequences == 4


def test_limits_that_memory_has_lowered_stay_low_when_the_target_moves_them() -> None:
    limits = StepLimits(64, 512)
    limits.shrink(40)
    limits.limit(48, 384)
    assert (limits.max_num_sequences, limits.max_tokens) == (20, 20)
    limits.reset()
    assert (limits.max_num_sequences, limits.max_tokens) == (48, 384)


def test_an_engine_with_a_target_answers_the_same_and_counts_what_it_did(tiny_llama: Path) -> None:
    work = requests_for([(5 + i, 6, 7) for i in range(40)], greedy(5))
    free = make_engine(tiny_llama)
    bound = make_engine(tiny_llama, latency_target_seconds=1e-6)
    assert [one.token_ids for one in run(bound, work)] == [one.token_ids for one in run(free, work)]
    assert bound.step_limits[0] < 8
    assert (bound.stats.limit_cuts > 0, bound.stats.limit_raises) == (True, 0)
    assert free.step_limits == (8, free.config.max_tokens_per_step)
    bound.check_integrity()


def test_a_target_of_no_time_is_refused(tiny_llama: Path) -> None:
    with pytest.raises(ConfigError, match="latency_target_seconds"):
        EngineConfig(tiny_llama, latency_target_seconds=0.0)
