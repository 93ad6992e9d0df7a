"""The engine's thread serves embeddings and scores beside generation, each with a result of its own type."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from threading import Condition
from typing import Any

import pytest

from tests.fixtures.generation import greedy, make_engine, requests_for
from tests.fixtures.readings import random_prompts, run_embeddings, run_scores
from tests.fixtures.tiny_llama import reference_tokens
from worker.engine.engine_thread import EngineThread
from worker.engine.requests.batch_policy import BatchPolicy
from worker.engine.requests.embedding import Embedding, EmbeddingRequest
from worker.engine.requests.errors import EngineStoppedError
from worker.engine.requests.generation import EngineRequest, GenerationRequest
from worker.engine.requests.scoring import Scores, ScoringRequest
from worker.engine.scheduling.plan import StepOutput
from worker.engine.submission import Submission
from worker.values.requests import EmbeddingParams, Pooling

PROMPTS = random_prompts(3, 20, 6)
TEXTS = ["the quick brown", "fox jumps over", "the quick brown"]
WAIT_SECONDS = 60.0


@pytest.fixture
def thread(tiny_llama: Path) -> Iterator[EngineThread]:
    thread = EngineThread(lambda: make_engine(tiny_llama))
    thread.start()
    yield thread
    thread.stop()


def collect(submission: Submission[Any]) -> list[Any]:
    outcomes: list[Any] = []
    while not submission.is_done:
        arrived = submission.take(WAIT_SECONDS)
        assert arrived, "nothing arrived in time"
        outcomes += arrived
    return sorted(outcomes, key=lambda outcome: int(outcome.id))


def test_every_kind_from_several_threads(thread: EngineThread, tiny_llama: Path) -> None:
    engine = make_engine(tiny_llama)
    embeds = [
        EmbeddingRequest(index, text, EmbeddingParams(Pooling.MEAN)) for index, text in enumerate(TEXTS)
    ]
    scores = [ScoringRequest(index, text, [" lazy", " dog", (5, 6)]) for index, text in enumerate(TEXTS)]
    vectors = [one.vector for one in run_embeddings(engine, embeds)]
    logprobs = [[score.logprob for score in one.continuations] for one in run_scores(engine, scores)]
    found: list[tuple[list[Any], list[Embedding], list[Scores]]] = []

    def caller() -> None:
        # The same ids in every Submission.
        submissions = (
            thread.submit(requests_for(PROMPTS, greedy(12))),
            thread.submit(embeds),
            thread.submit(scores),
        )
        found.append(tuple(collect(submission) for submission in submissions))  # type: ignore[arg-type]
        assert [submission.num_output_tokens for submission in submissions] == [36, 0, 0]

    callers = [threading.Thread(target=caller) for _ in range(4)]
    for one in callers:
        one.start()
    for one in callers:
        one.join()
    assert len(found) == 4
    for generated, embedded, scored in found:
        assert [one.token_ids for one in generated] == [
            reference_tokens(tiny_llama, prompt, 12) for prompt in PROMPTS
        ]
        for one, vector in zip(embedded, vectors, strict=True):
            assert one.vector == pytest.approx(vector, abs=1e-5)
        for one, expected in zip(scored, logprobs, strict=True):
            assert [score.logprob for score in one.continuations] == pytest.approx(expected, abs=1e-4)


def test_errors_and_cancellation_are_outcomes(thread: EngineThread) -> None:
    submission = thread.submit([EmbeddingRequest(0, ""), EmbeddingRequest(1, "fox")])
    failed, embedded = collect(submission)
    assert (failed.error, len(embedded.vector)) == ("the prompt is empty", 48)
    long = thread.submit([ScoringRequest(0, PROMPTS[1], [PROMPTS[1]])])
    long.cancel()
    (scores,) = collect(long)
    assert scores.is_cancelled or scores.continuations


READING = EmbeddingRequest(0, "fox")
GENERATION = GenerationRequest(0, "fox", greedy(4))
# What waits for its batch, and the policy's name and size.
HELD = pytest.mark.parametrize(
    ("request_", "named"),
    [(READING, ("continuous", None)), (GENERATION, ("fixed", 8))],
    ids=["reading", "generation"],
)


def held_thread(model: Path, named: tuple[str, int | None], seconds: float) -> EngineThread:
    """Return a thread whose engine holds requests back for so long."""
    policy = BatchPolicy(*named, window_seconds=seconds)
    thread = EngineThread(lambda: make_engine(model, batch_policy=policy))
    thread.start()
    return thread


@HELD
def test_the_thread_wakes_when_a_window_ends(
    tiny_llama: Path, request_: EngineRequest, named: tuple[str, int | None]
) -> None:
    thread = held_thread(tiny_llama, named, 0.05)
    submission = thread.submit([request_])
    assert len(collect(submission)) == 1  # nobody wakes it but the clock
    thread.stop()


@HELD
def test_a_window_does_not_keep_a_thread_from_stopping(
    tiny_llama: Path, request_: EngineRequest, named: tuple[str, int | None]
) -> None:
    for drain_seconds in (0.0, 0.05):
        thread = held_thread(tiny_llama, named, 10_000.0)
        submission = thread.submit([request_])
        thread.stop(drain_seconds)
        with pytest.raises(EngineStoppedError):
            submission.take(WAIT_SECONDS)


@HELD
def test_cancel_ends_what_waits_for_its_window(
    tiny_llama: Path, request_: EngineRequest, named: tuple[str, int | None]
) -> None:
    thread = held_thread(tiny_llama, named, 10_000.0)
    submission = thread.submit([request_])
    submission.cancel()
    (outcome,) = collect(submission)
    assert getattr(outcome, "is_cancelled", False) or outcome.finish_reason == "cancelled"
    thread.stop()


def test_a_thread_sleeps_while_a_fixed_batch_gathers(tiny_llama: Path) -> None:
    thread = held_thread(tiny_llama, ("fixed", 2), 10_000.0)
    engine = thread._loaded_engine()
    step, calls = engine.step, []

    def counted(guard: Condition) -> StepOutput:
        calls.append(None)
        return step(guard)

    engine.step = counted  # type: ignore[method-assign]
    first = thread.submit([GENERATION])
    assert first.take(0.2) == []
    assert len(calls) == 1, "the one that begins to wait"
    second = thread.submit([replace(GENERATION, id=1)])
    assert [len(collect(one)) for one in (first, second)] == [1, 1]
    thread.stop()
