from pathlib import Path

import pytest

from tests.fixtures.generation import greedy, make_engine
from tests.fixtures.tiny_llama import BEGIN, CONTEXT
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


def test_a_stop_string_may_be_part_of_the_output(tiny_llama: Path) -> None:
    (whole,) = stream(make_engine(tiny_llama), GenerationRequest(0, PROMPTS[0], greedy(40)))[1].values()
    stop = whole.text[8:13]
    params = greedy(40, stop=(stop,), include_stop_str_in_output=True)
    deltas, completions = stream(
        make_engine(tiny_llama), GenerationRequest(0, PROMPTS[0], params, is_streamed=True)
    )
    check(deltas, completions[0].choices[0])
    assert completions[0].text == whole.text[: whole.text.find(stop) + len(stop)]


@pytest.mark.parametrize("is_kept", [False, True])
def test_special_tokens_are_in_the_text_if_asked_for(tiny_llama: Path, is_kept: bool) -> None:
    """The tokenizer's `<|begin|>` is token 0; a bias makes it every token of the output."""
    params = greedy(
        3, logit_bias=((BEGIN, 100.0),), skip_special_tokens=not is_kept, stop_token_ids=(), min_tokens=1
    )
    request = GenerationRequest(0, PROMPTS[0], params, is_streamed=True)
    deltas, completions = stream(make_engine(tiny_llama), request)
    check(deltas, completions[0].choices[0])
    assert completions[0].text == ("<|begin|>" * 3 if is_kept else "")


def test_a_stop_token_is_in_the_text_if_asked_for(tiny_llama: Path) -> None:
    (whole,) = stream(make_engine(tiny_llama), GenerationRequest(0, PROMPTS[0], greedy(12)))[1].values()
    last = whole.token_ids[5]
    assert last not in whole.token_ids[:5]
    for is_kept in (False, True):
        params = greedy(12, stop_token_ids=(last,), include_stop_str_in_output=is_kept)
        engine = make_engine(tiny_llama)
        (found,) = stream(engine, GenerationRequest(0, PROMPTS[0], params))[1].values()
        assert found.text == engine.tokenizer.decode(whole.token_ids[: 6 if is_kept else 5])


def test_a_truncated_prompt_keeps_its_last_tokens(tiny_llama: Path) -> None:
    prompt = tuple(range(40, 60))
    engine = make_engine(tiny_llama)
    kept, short, roomy = (
        stream(engine, GenerationRequest(number, given, params))[1][number]
        for number, (given, params) in enumerate(
            [
                (prompt, greedy(4, truncate_prompt_tokens=7)),
                (prompt[-7:], greedy(4)),
                (prompt * 9, greedy(CONTEXT - 7, truncate_prompt_tokens=-1, must_fit=True)),
            ]
        )
    )
    assert (kept.num_prompt_tokens, kept.token_ids) == (7, short.token_ids)
    assert roomy.num_prompt_tokens == 7
    assert roomy.token_ids[:4] == short.token_ids


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
