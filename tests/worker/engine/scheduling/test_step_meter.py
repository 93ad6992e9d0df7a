import time
from pathlib import Path

import pytest

from tests.fixtures.generation import greedy, make_engine, requests_for, run
from tests.fixtures.readings import run_all, run_embeddings
from tests.fixtures.scheduling import make_sequence
from worker.engine.requests.embedding import EmbeddingRequest
from worker.engine.requests.generation import Answer, GenerationRequest
from worker.engine.requests.scoring import ScoringRequest
from worker.engine.requests.stats import EngineStats
from worker.engine.scheduling import step_meter
from worker.engine.scheduling.plan import ScheduledSequence, StepPlan
from worker.engine.scheduling.step_meter import charge


def assert_pays_in_full(done: list[Answer], stats: EngineStats) -> None:
    """Check that the outcomes share all seconds of all Steps, and that none had its Steps for nothing."""
    assert all(one.seconds.prefill > 0 for one in done)
    assert sum(one.seconds.prefill for one in done) == pytest.approx(stats.prefill_seconds)
    assert sum(one.seconds.padding for one in done) == pytest.approx(stats.padding_seconds)


def test_a_step_is_divided_by_tokens_and_kinds() -> None:
    fresh, old, crossing = (make_sequence(i, range(6)) for i in range(3))
    old.token_ids += [7, 8]
    crossing.token_ids += [7, 8]
    plan = StepPlan(
        (
            ScheduledSequence(fresh, 0, 4, is_sampled=False),
            ScheduledSequence(old, 7, 1, is_sampled=True),
            ScheduledSequence(crossing, 5, 3, is_sampled=True),  # preempted: prompt and output again
        )
    )
    stats = EngineStats()
    charge(plan, stats, seconds=10.0, num_padding=2, num_rows=4)
    kinds = [(one.prefill_seconds, one.decode_seconds, one.padding_seconds) for one in (fresh, old, crossing)]
    assert kinds == [(4.0, 0.0, 1.0), (0.0, 1.0, 0.25), (1.0, 2.0, 0.75)]
    assert (stats.prefill_seconds, stats.decode_seconds, stats.padding_seconds) == (5.0, 3.0, 2.0)
    assert (stats.computed_tokens, stats.padding_tokens) == (8, 2)
    assert (stats.scheduled_sequences, stats.sequence_rows) == (3, 4)


def test_what_requests_pay_is_what_the_steps_took(tiny_llama: Path) -> None:
    engine = make_engine(tiny_llama)
    done = run(engine, requests_for([[1, 2, 3] * 5, [4, 5, 6, 7]], greedy(8)))
    stats = engine.stats
    assert sum(one.seconds.prefill for one in done) == pytest.approx(stats.prefill_seconds)
    assert sum(one.seconds.decode for one in done) == pytest.approx(stats.decode_seconds)
    assert all(one.seconds.prefill > 0 and one.seconds.decode > 0 for one in done)
    assert stats.padding_seconds == 0.0, "on a CPU a Step is packed"
    assert stats.computed_tokens == stats.prefill_tokens + 2 * 7


def test_embeddings_and_scores_pay_for_their_steps_too(tiny_llama: Path) -> None:
    engine = make_engine(tiny_llama, max_tokens_per_step=8)
    done = run_all(
        engine,
        [
            GenerationRequest(0, [1, 2, 3] * 5, greedy(8)),
            EmbeddingRequest(1, (4, 5, 6, 7) * 4),
            ScoringRequest(2, (8, 9, 10), [(11, 12), (13, 14, 15)]),
        ],
    )
    assert_pays_in_full(done, engine.stats)


def test_the_time_without_work_costs_no_step(tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the last work was a reading, which ends with its Step."""
    engine = make_engine(tiny_llama)
    measured: list[float] = []
    monkeypatch.setattr(engine._meter.costs, "add", lambda _, seconds: measured.append(seconds))
    now = time.perf_counter
    for hours in range(3):
        monkeypatch.setattr(step_meter.time, "perf_counter", lambda hours=hours: now() + 3600 * hours)
        run_embeddings(engine, [EmbeddingRequest(1, (5, 6, 7))])
    assert len(measured) == 3
    assert max(measured) < 3600
