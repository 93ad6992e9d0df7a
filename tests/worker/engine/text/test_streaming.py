from pathlib import Path

import pytest

from tests.fixtures.generation import greedy, make_engine
from worker.engine.engine import Engine
from worker.engine.engine_thread import EngineThread
from worker.engine.requests.generation import Completion, GenerationRequest
from worker.values.delta import Delta
from worker.values.results import Choice
from worker.values.sampling import Optimization, SamplingParams

PROMPTS = ["one two", "the quick brown fox", "a"]


def stream(engine: Engine, *requests: GenerationRequest) -> tuple[list[Delta], dict[object, Completion]]:
    deltas: list[Delta] = []
    completions: dict[object, Completion] = {}
    for request in requests:
        engine.add(request)
    while engine.has_unfinished:
        output = engine.step()
        deltas += output.deltas
        completions |= {one.id: one for one in output.completions}
    return deltas, completions


def check(deltas: list[Delta], choice: Choice) -> None:
    assert "".join(delta.text for delta in deltas) == choice.text
    assert [delta.offset for delta in deltas] == [
        len("".join(delta.text for delta in deltas[:i])) for i in range(len(deltas))
    ]
    assert sum(delta.num_tokens for delta in deltas) == len(choice.token_ids)
    assert [delta.finish_reason for delta in deltas] == [None] * (len(deltas) - 1) + [choice.finish_reason]


@pytest.mark.parametrize(
    "params",
    [
        greedy(24),
        SamplingParams(max_tokens=24, temperature=2.0, seed=3, n=3, logprobs=2),
        SamplingParams(max_tokens=60, temperature=1.5, seed=1),
    ],
)
def test_deltas_make_up_the_choices(tiny_llama: Path, params: SamplingParams) -> None:
    requests = [GenerationRequest(i, text, params, is_streamed=True) for i, text in enumerate(PROMPTS)]
    deltas, completions = stream(make_engine(tiny_llama), *requests)
    for request_id, completion in completions.items():
        for index, choice in enumerate(completion.choices):
            own = [delta for delta in deltas if (delta.id, delta.index) == (request_id, index)]
            assert len(own) > 2
            check(own, choice)
            if choice.logprobs is not None:
                assert tuple(one for delta in own for one in delta.logprobs or ()) == choice.logprobs


def test_what_a_stop_string_takes_back_is_never_told(tiny_llama: Path) -> None:
    (whole,) = stream(make_engine(tiny_llama), GenerationRequest(0, PROMPTS[0], greedy(40)))[1].values()
    for start in range(4, len(whole.text) - 6, 5):
        stop = (whole.text[start : start + 5], "no such text")
        request = GenerationRequest(0, PROMPTS[0], greedy(40, stop=stop), is_streamed=True)
        deltas, completions = stream(make_engine(tiny_llama), request)
        check(deltas, completions[0].choices[0])
        assert stop[0] not in completions[0].text


def test_who_does_not_stream_is_told_nothing(tiny_llama: Path) -> None:
    deltas, completions = stream(make_engine(tiny_llama), GenerationRequest(0, PROMPTS[0], greedy(9)))
    assert deltas == []
    assert len(completions) == 1


def test_a_cancelled_stream_ends(tiny_llama: Path) -> None:
    engine = make_engine(tiny_llama)
    engine.add(GenerationRequest(0, PROMPTS[0], greedy(40), is_streamed=True))
    deltas = [*engine.step().deltas, *engine.step().deltas]
    engine.cancel(0)
    output = engine.step()
    check([*deltas, *output.deltas], output.completions[0].choices[0])


def test_the_thread_tells_deltas_by_the_callers_ids(tiny_llama: Path) -> None:
    thread = EngineThread(lambda: make_engine(tiny_llama))
    thread.start()
    told: list[Delta] = []
    request = GenerationRequest("mine", PROMPTS[0], greedy(9), is_streamed=True)
    work = thread.submit([request], told.append)
    (completion,) = work.take(60)
    thread.stop()
    assert {delta.id for delta in told} == {"mine"}
    check(told, completion.choices[0])


def test_a_request_may_keep_out_of_the_prefix_cache(tiny_llama: Path) -> None:
    engine = make_engine(tiny_llama)
    prompt = tuple(range(40, 61))
    found = []
    basic, full = Optimization.BASIC, Optimization.FULL
    for number, optimization in enumerate([basic, full, basic, full]):
        request = GenerationRequest(number, prompt, greedy(2, optimization=optimization))
        found.append(stream(engine, request)[1][number].num_cached_tokens)
    assert found == [0, 0, 0, 20]
