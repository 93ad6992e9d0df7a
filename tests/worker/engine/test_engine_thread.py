import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.fixtures.generation import greedy, make_engine, requests_for
from tests.fixtures.tiny_llama import reference_tokens
from worker.engine import engine_thread
from worker.engine.engine import Engine
from worker.engine.engine_thread import EngineThread
from worker.engine.requests.errors import CheckpointError, EngineFailedError, EngineStoppedError
from worker.engine.requests.generation import Completion, EngineRequest, GenerationRequest
from worker.engine.scheduling.plan import StepOutput
from worker.engine.submission import Submission
from worker.engine.text.encoding import encode_requests
from worker.engine.text.tokenizer import Tokenizer

PROMPTS = [(5, 6, 7), (9,) * 20, (3, 1, 4, 1, 5, 9)]
WAIT_SECONDS = 60.0


@pytest.fixture
def thread(tiny_llama: Path) -> Iterator[EngineThread]:
    thread = EngineThread(lambda: make_engine(tiny_llama))
    thread.start()
    yield thread
    thread.stop()


def collect(submission: Submission) -> list[Completion]:
    completions: list[Completion] = []
    while not submission.is_done:
        arrived = submission.take(WAIT_SECONDS)
        assert arrived, "nothing arrived in time"
        completions += arrived
    return sorted(completions, key=lambda completion: int(str(completion.id)))


def test_submissions_from_several_threads_run_together(thread: EngineThread, tiny_llama: Path) -> None:
    expected = [reference_tokens(tiny_llama, prompt, 12) for prompt in PROMPTS]
    results: list[list[tuple[int, ...]]] = []

    def caller() -> None:
        # The same ids in every Submission.
        submission = thread.submit(requests_for(PROMPTS, greedy(12)))
        results.append([completion.token_ids for completion in collect(submission)])

    callers = [threading.Thread(target=caller) for _ in range(5)]
    for one in callers:
        one.start()
    for one in callers:
        one.join()
    assert results == [expected] * 5
    assert thread.stats.decode_tokens == 5 * 3 * 12


def test_counts_are_live_and_end_right(thread: EngineThread) -> None:
    submission = thread.submit(requests_for([*PROMPTS, ()], greedy(12)))
    assert submission.num_open <= 4
    completions = collect(submission)
    assert submission.num_output_tokens == 36
    assert submission.num_open == 0
    assert [completion.finish_reason.value for completion in completions] == ["length"] * 3 + ["error"]
    assert submission.take(0.0) == []


def test_text_is_tokenized_on_the_way_in(thread: EngineThread) -> None:
    prompts = ["the quick", (5, 6), "brown fox"]
    completions = collect(thread.submit(requests_for(prompts, greedy(3))))
    assert [completion.num_prompt_tokens > 0 for completion in completions] == [True] * 3
    assert completions[1].num_prompt_tokens == 2


def test_the_first_requests_run_while_the_next_are_tokenized(
    thread: EngineThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = []

    def encode(requests: Sequence[EngineRequest], tokenizer: Tokenizer) -> list[EngineRequest]:
        if sizes:  # the Steps of the first ones are over before there are others
            deadline = time.monotonic() + WAIT_SECONDS
            while thread.stats.decode_tokens < 6:
                assert time.monotonic() < deadline, "the first requests do not run"
                time.sleep(0.01)
        sizes.append(len(requests))
        return encode_requests(requests, tokenizer)

    monkeypatch.setattr(engine_thread, "ENCODED_AT_ONCE", 2)
    monkeypatch.setattr(engine_thread, "encode_requests", encode)
    completions = collect(thread.submit(requests_for(["a", "b", "c"], greedy(3))))
    assert sizes == [2, 1]
    assert [len(completion.token_ids) for completion in completions] == [3] * 3


def test_nothing_submitted_is_done_at_once(thread: EngineThread) -> None:
    assert thread.submit([]).is_done


def test_repeated_ids_are_refused(thread: EngineThread) -> None:
    with pytest.raises(ValueError, match="the same id"):
        thread.submit([GenerationRequest(1, (5,), greedy(1))] * 2)


def test_take_times_out_with_nothing(thread: EngineThread) -> None:
    submission = thread.submit(requests_for([PROMPTS[0]], greedy(100)))
    assert submission.take(0.0) == []
    assert not submission.is_done
    collect(submission)


def test_take_waits_for_so_many_or_the_last(thread: EngineThread) -> None:
    submission = thread.submit([GenerationRequest(i, (5, 6), greedy(4 + 8 * i)) for i in range(4)])
    assert len(submission.take(WAIT_SECONDS, least=3)) >= 3
    while not submission.is_done:
        assert submission.take(WAIT_SECONDS, least=100)


def test_cancel(thread: EngineThread, tiny_llama: Path) -> None:
    submission = thread.submit(requests_for([PROMPTS[0]], greedy(120)))
    other = thread.submit(requests_for([PROMPTS[1]], greedy(12)))
    submission.cancel()
    (completion,) = collect(submission)
    assert completion.finish_reason in {"cancelled", "length"}
    count = len(completion.token_ids)
    assert completion.token_ids == reference_tokens(tiny_llama, PROMPTS[0], 120)[:count]
    submission.cancel()  # after the end: nothing
    assert collect(other)[0].token_ids == reference_tokens(tiny_llama, PROMPTS[1], 12)


def test_loading_errors_come_out_of_start(tmp_path: Path) -> None:
    thread = EngineThread(lambda: make_engine(tmp_path / "nowhere"))
    with pytest.raises(CheckpointError):
        thread.start()
    with pytest.raises(EngineStoppedError, match="not loaded"):
        thread.submit([GenerationRequest(1, "text", greedy(1))])
    thread.stop()


def test_a_step_that_raises_wakes_everyone(tiny_llama: Path) -> None:
    seen: list[BaseException] = []
    gate = threading.Event()

    class BrokenEngine(Engine):
        def step(self, guard: threading.Condition | None = None) -> StepOutput:  # noqa: ARG002
            gate.wait(WAIT_SECONDS)
            raise MemoryError("no memory")

    def factory() -> Engine:
        return BrokenEngine(make_engine(tiny_llama).config)

    thread = EngineThread(factory, on_failure=seen.append)
    thread.start()
    submissions = [thread.submit(requests_for(PROMPTS, greedy(4))) for _ in range(2)]
    gate.set()
    for submission in submissions:
        with pytest.raises(EngineFailedError, match="no memory") as caught:
            submission.take(WAIT_SECONDS)
        assert isinstance(caught.value.__cause__, MemoryError)
    thread.stop()
    assert [type(error) for error in seen] == [MemoryError]
    assert isinstance(thread.failure, MemoryError)
    with pytest.raises(EngineFailedError):
        thread.submit(requests_for(PROMPTS, greedy(4)))


def test_stop_finishes_what_is_open_while_time_lasts(tiny_llama: Path) -> None:
    thread = EngineThread(lambda: make_engine(tiny_llama))
    thread.start()
    submission = thread.submit(requests_for(PROMPTS, greedy(12)))
    thread.stop(drain_seconds=WAIT_SECONDS)
    assert len(collect(submission)) == 3
    with pytest.raises(EngineStoppedError):
        thread.submit(requests_for(PROMPTS, greedy(12)))


def test_stop_wakes_what_is_left(tiny_llama: Path) -> None:
    started = threading.Event()

    class SlowEngine(Engine):
        def step(self, guard: threading.Condition | None = None) -> StepOutput:  # noqa: ARG002
            started.set()
            return StepOutput({}, ())

    thread = EngineThread(lambda: SlowEngine(make_engine(tiny_llama).config))
    thread.start()
    submission = thread.submit(requests_for(PROMPTS, greedy(12)))
    assert started.wait(WAIT_SECONDS)
    thread.stop(drain_seconds=0.0)
    with pytest.raises(EngineStoppedError):
        submission.take(WAIT_SECONDS)


def test_progress_follows_steps_and_is_now_while_idle(tiny_llama: Path) -> None:
    entered, gate = threading.Event(), threading.Event()

    class GatedEngine(Engine):
        def step(self, guard: threading.Condition | None = None) -> StepOutput:
            entered.set()
            gate.wait(WAIT_SECONDS)
            return super().step(guard)

    thread = EngineThread(lambda: GatedEngine(make_engine(tiny_llama).config))
    thread.start()
    before = time.monotonic()
    assert thread.last_progress_at >= before
    submission = thread.submit(requests_for(PROMPTS, greedy(2)))
    assert entered.wait(WAIT_SECONDS)
    stuck_at = thread.last_progress_at
    assert stuck_at == thread.last_progress_at <= time.monotonic()
    gate.set()
    collect(submission)
    thread.stop()
    assert thread.last_progress_at > stuck_at
