"""A request that goes on from known output tokens ends as the run that was never interrupted."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.fixtures.generation import greedy, make_engine, requests_for, run
from worker.engine.engine import Engine
from worker.engine.requests.generation import Completion, GenerationRequest
from worker.values.sampling import FormatKind, OutputFormat, SamplingParams

PROMPTS = ["the quick brown fox", (5, 6, 7), (9,) * 21]
SEEDED = SamplingParams(max_tokens=24, temperature=1.0, top_p=0.9, seed=11, ignore_eos=True)


def resumed(engine: Engine, requests: list[GenerationRequest], whole: list[Completion], at: int) -> None:
    again = [
        replace(request, output_token_ids=completion.token_ids[:at])
        for request, completion in zip(requests, whole, strict=True)
    ]
    for one, other in zip(run(engine, again), whole, strict=True):
        assert (one.token_ids, one.text, one.finish_reason) == (
            other.token_ids,
            other.text,
            other.finish_reason,
        )
        assert (one.num_prompt_tokens, one.num_output_tokens) == (
            other.num_prompt_tokens,
            other.num_output_tokens,
        )
        assert one.num_cached_tokens <= one.num_prompt_tokens


@pytest.mark.parametrize(
    "params",
    [
        greedy(24),
        SEEDED,
        replace(SEEDED, repetition_penalty=1.3, frequency_penalty=0.7, presence_penalty=0.4),
        replace(SEEDED, min_tokens=12, ignore_eos=False),
    ],
    ids=["greedy", "seeded", "penalties", "min_tokens"],
)
@pytest.mark.parametrize("at", [1, 9, 23])
def test_it_ends_as_the_whole_run(tiny_llama: Path, params: SamplingParams, at: int) -> None:
    requests = requests_for(PROMPTS, params)
    whole = run(make_engine(tiny_llama), requests)
    # On a fresh engine, and on one whose prefix cache knows the first tokens.
    engine = make_engine(tiny_llama)
    resumed(engine, requests, whole, min(at, min(len(one.token_ids) for one in whole) - 1))
    resumed(engine, requests, whole, 3)


def test_only_what_is_missing_is_generated(tiny_llama: Path) -> None:
    requests = requests_for(PROMPTS, greedy(24))
    whole = run(make_engine(tiny_llama), requests)
    engine = make_engine(tiny_llama)
    resumed(engine, requests, whole, 20)
    assert engine.stats.decode_tokens == 3 * 4


def test_a_stop_string_over_the_border_still_stops(tiny_llama: Path) -> None:
    (free,) = run(make_engine(tiny_llama), requests_for(PROMPTS[:1], greedy(24)))
    engine = make_engine(tiny_llama)
    text = engine.tokenizer.decode(free.token_ids)
    middle = len(engine.tokenizer.decode(free.token_ids[:12]))
    stop = text[middle - 1 : middle + 2]
    requests = requests_for(PROMPTS[:1], greedy(24, stop=(stop,)))
    whole = run(engine, requests)
    assert whole[0].finish_reason == "stop"
    for at in range(1, len(whole[0].token_ids)):
        resumed(make_engine(tiny_llama), requests, whole, at)


def test_a_grammar_goes_on_where_it_was(tiny_llama: Path) -> None:
    params = greedy(40, format=OutputFormat(FormatKind.REGEX, "[a-f]{6}-[0-9]{6}"), ignore_eos=False)
    requests = requests_for(PROMPTS[:1], params)
    whole = run(make_engine(tiny_llama), requests)
    resumed(make_engine(tiny_llama), requests, whole, len(whole[0].token_ids) // 2)


@pytest.mark.parametrize(
    ("params", "output", "problem"),
    [
        (greedy(4), (5, 6, 7, 8), "nothing may follow"),
        (greedy(4), (10_000,), "outside the vocabulary"),
        (greedy(4, ignore_eos=False), (1,), "nothing may follow"),
        (greedy(4, n=2), (5,), "one choice"),
        (greedy(4, logprobs=1), (5,), "without logprobs"),
    ],
)
def test_what_cannot_go_on_is_that_requests_error(
    tiny_llama: Path, params: SamplingParams, output: tuple[int, ...], problem: str
) -> None:
    engine = make_engine(tiny_llama)
    (completion,) = run(engine, [GenerationRequest(1, (5, 6), params, output_token_ids=output)])
    assert completion.error is not None
    assert problem in completion.error


@pytest.mark.usefixtures("only_on_cpu")
def test_the_output_so_far_can_be_read_while_it_runs(tiny_llama: Path) -> None:
    engine = make_engine(tiny_llama)
    (whole,) = run(make_engine(tiny_llama), requests_for(PROMPTS[:1], greedy(24)))
    (request,) = requests_for(PROMPTS[:1], greedy(24))
    engine.add(request)
    engine.add(GenerationRequest(1, (5, 6), greedy(24, n=2)))
    for _ in range(6):
        engine.step()
    assert engine.output_so_far(0) == whole.token_ids[:6]
    assert engine.output_so_far(1) is None, "two choices cannot go on"
    assert engine.output_so_far(2) is None
