"""Guesses change nothing but the number of Steps, whatever is guessed and whatever happens in between."""

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.generation import DEFAULTS, greedy, make_engine, requests_for, run
from tests.fixtures.speculation import (
    FixedTimes,
    Oracle,
    TreeOracle,
    guess_always,
    guess_with_heads,
    ignore_time,
    write_heads,
)
from tests.fixtures.tiny_llama import write_tiny_llama
from worker.engine.engine import Engine
from worker.engine.requests.errors import OutOfMemoryError
from worker.engine.requests.generation import Completion, GenerationRequest
from worker.engine.scheduling.plan import StepPlan
from worker.values.delta import Delta
from worker.values.logprobs import Logprobs
from worker.values.results import DeviceSeconds
from worker.values.sampling import FormatKind, Optimization, OutputFormat, SamplingParams

PROMPTS = [(5, 6, 7), (9,) * 20, (3, 1, 4, 1, 5, 9), (9,) * 13 + (8, 8), (40, 41, 42, 43)]
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "yy"]}},
    "required": ["a", "b"],
}
RULES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "penalties": {"repetition_penalty": 1.3, "frequency_penalty": 0.7, "presence_penalty": -0.5},
    "bias": {"logit_bias": ((17, 3.0), (80, -5.0))},
    "min_tokens": {"min_tokens": 12, "ignore_eos": False, "logit_bias": ((1, 12.0),)},
    "stop strings": {"stop": ("e", "q"), "min_tokens": 4},
    "stop tokens": {"stop_token_ids": tuple(range(60, 200))},
    "logprobs": {"logprobs": 3, "prompt_logprobs": 1},
    "grammar": {"format": OutputFormat(FormatKind.JSON_SCHEMA, json.dumps(SCHEMA)), "max_tokens": 60},
    "pattern": {"format": OutputFormat(FormatKind.REGEX, "[a-z]{3,9}( [0-9]{1,4}){2,5}"), "max_tokens": 40},
    "sampled": {"temperature": 1.0, "seed": 11},
    "filtered": {"temperature": 0.8, "top_p": 0.9, "top_k": 40, "min_p": 0.01, "seed": 12},
    "choices": {"temperature": 1.0, "seed": 13, "n": 2, "best_of": 3, "logprobs": 1},
    "sampled grammar": {
        "temperature": 1.2,
        "seed": 14,
        "format": OutputFormat(FormatKind.REGEX, "[a-z]{3,9}( [0-9]{1,4}){2,5}"),
        "frequency_penalty": 0.3,
    },
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """At int8, where a row has the same bits in any Step."""
    return write_tiny_llama(tmp_path_factory.mktemp("sides"), hidden_size=64, intermediate_size=128)


@pytest.fixture(scope="module")
def plain(checkpoint: Path) -> Engine:
    return make_engine(checkpoint, dtype="int8")


@pytest.fixture(scope="module")
def with_heads(checkpoint: Path, plain: Engine, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same checkpoint, with heads that know what it says greedily."""
    done = run(plain, requests_for(PROMPTS, greedy(44)))
    texts = [(*prompt, *one.token_ids)[:47] for prompt, one in zip(PROMPTS, done, strict=True)]
    return write_heads(checkpoint, tmp_path_factory.mktemp("heads"), texts)


def all_rules() -> list[GenerationRequest]:
    params = [greedy(**{"max_tokens": 24} | rules) for rules in RULES.values()]
    return [
        GenerationRequest(len(PROMPTS) * number + index, prompt, one)
        for number, one in enumerate(params)
        for index, prompt in enumerate(PROMPTS)
    ]


def outputs_of(requests: list[GenerationRequest], done: list[Completion]) -> dict[tuple[int, ...], list[Any]]:
    found: dict[tuple[int, ...], list[Any]] = {}
    for request, completion in zip(requests, done, strict=True):
        found.setdefault(tuple(map(int, request.prompt)), []).extend(
            one.token_ids for one in completion.choices
        )
    return found


def told(completion: Completion) -> Completion:
    """A Completion without what depends on time and on what was cached.

    Which tokens a GPU names of equally likely ones depends on the number of rows beside them.
    """
    choices = completion.choices
    if DEFAULTS["device"] == "cuda":
        choices = tuple(replace(one, logprobs=_unnamed(one.logprobs)) for one in choices)
    return replace(
        completion,
        choices=choices,
        seconds=DeviceSeconds(),
        started_at=None,
        first_token_at=None,
        num_cached_tokens=0,
        num_guessed_tokens=0,
        num_right_tokens=0,
    )


def _unnamed(logprobs: Logprobs | None) -> Logprobs | None:
    """Logprobs without the ids of the likeliest tokens."""
    return logprobs and tuple(replace(one, top=tuple((0, value) for _, value in one.top)) for one in logprobs)


@pytest.mark.parametrize("wrong", [0.0, 0.3, 1.0])
def test_every_rule_gives_what_it_gives_without_guesses(
    checkpoint: Path, plain: Engine, wrong: float
) -> None:
    requests = all_rules()
    expected = run(plain, requests)
    engine = make_engine(checkpoint, dtype="int8", speculates=True)
    guess_always(engine, Oracle(outputs_of(requests, expected), wrong))
    assert list(map(told, run(engine, requests))) == list(map(told, expected))
    assert engine.stats.lookup_guessed_tokens > 100
    share = engine.stats.lookup_right_tokens / engine.stats.lookup_guessed_tokens
    # Different rules may begin with the same tokens, so an oracle may have another output in mind.
    assert (wrong == 0) <= (share > 0.7)
    assert (wrong == 1) <= (share < 0.1)


@pytest.mark.parametrize("kv_cache_dtype", ["plain", "int8"])
def test_every_rule_gives_what_it_gives_without_trees(
    checkpoint: Path, kv_cache_dtype: str, request: pytest.FixtureRequest
) -> None:
    """Blocks of four tokens, so that trees lie over several."""
    if kv_cache_dtype == "int8":  # on a GPU, keys of tokens that are verified are rounded as a prompt's
        request.getfixturevalue("only_on_cpu")
    options: dict[str, Any] = {"dtype": "int8", "block_size": 4, "kv_cache_dtype": kv_cache_dtype}
    requests = all_rules()
    expected = run(make_engine(checkpoint, **options), requests)
    engine = make_engine(checkpoint, **options, speculates=True)
    guess_always(engine, TreeOracle(outputs_of(requests, expected), 0.2))
    assert list(map(told, run(engine, requests))) == list(map(told, expected))
    assert 100 < engine.stats.lookup_right_tokens < engine.stats.lookup_guessed_tokens / 2


@pytest.mark.usefixtures("only_on_cpu")
def test_what_was_right_must_move_to_the_front(
    checkpoint: Path, plain: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = requests_for(PROMPTS, greedy(40))
    expected = run(plain, requests)
    monkeypatch.setattr("worker.engine.running.model_runner.moves_of", lambda *_: [])
    engine = make_engine(checkpoint, dtype="int8", speculates=True)
    guess_always(engine, TreeOracle(outputs_of(requests, expected), 0.2))
    assert list(map(told, run(engine, requests))) != list(map(told, expected))


@pytest.mark.usefixtures("only_on_cpu")
def test_every_rule_gives_what_it_gives_without_heads(plain: Engine, with_heads: Path) -> None:
    requests = all_rules()
    expected = run(plain, requests)
    engine = make_engine(with_heads, dtype="int8", speculates=True)
    guess_with_heads(engine)
    assert list(map(told, run(engine, requests))) == list(map(told, expected))
    assert 0 < engine.stats.medusa_right_tokens < engine.stats.medusa_guessed_tokens


def test_the_lookup_alone_guesses_repetition(checkpoint: Path, plain: Engine) -> None:
    engine = make_engine(checkpoint, dtype="int8", speculates=True)
    requests = requests_for(
        [(9, 3) * 20], greedy(60, logit_bias=((9, 30.0), (3, 29.0)), frequency_penalty=0.4)
    )
    engine._speculation.times = FixedTimes()  # type: ignore[assignment]
    ignore_time(engine)
    expected = run(plain, requests)
    assert list(map(told, run(engine, requests))) == list(map(told, expected))
    assert engine.stats.lookup_guessed_tokens


def test_forms_are_the_same_with_guesses_of_the_grammar_and_of_earlier_outputs(
    checkpoint: Path, plain: Engine
) -> None:
    form = OutputFormat(FormatKind.JSON_SCHEMA, json.dumps(SCHEMA | {"additionalProperties": False}))
    waves = [
        [
            GenerationRequest(
                10 * wave + index,
                prompt,
                greedy(60, format=form, temperature=1.0, seed=10 * wave + index),
                job="a",
            )
            for index, prompt in enumerate(PROMPTS)
        ]
        for wave in range(3)
    ]
    engine = make_engine(checkpoint, dtype="int8", speculates=True)
    engine._speculation.times = FixedTimes()  # type: ignore[assignment]
    ignore_time(engine)
    for requests in waves:
        expected = run(plain, requests)
        assert list(map(told, run(engine, requests))) == list(map(told, expected))
    stats = engine.stats
    assert stats.grammar_right_tokens > 20
    assert stats.lookup_right_tokens > 20
    assert stats.steps < plain.stats.steps


def test_streamed_text_and_logprobs_come_in_pieces_that_fit(checkpoint: Path, plain: Engine) -> None:
    params = greedy(24, logprobs=1, return_token_ids=True)
    (expected,) = run(plain, requests_for(PROMPTS[:1], params))
    engine = make_engine(checkpoint, dtype="int8", speculates=True)
    guess_always(engine, Oracle({PROMPTS[0]: [expected.token_ids]}, 0.2))
    engine.add(GenerationRequest(0, PROMPTS[0], params, is_streamed=True))
    deltas: list[Delta] = []
    while engine.has_unfinished:
        deltas += engine.step().deltas
    assert "".join(one.text for one in deltas) == expected.text
    assert tuple(token for one in deltas for token in one.token_ids) == expected.token_ids
    assert tuple(token for one in deltas for token in one.logprobs or ()) == expected.logprobs
    assert all(len(one.logprobs or ()) == one.num_tokens for one in deltas)


@pytest.mark.parametrize(
    ("seed", "proposer"),
    [(seed, "lookup") for seed in range(6)]
    + [(seed, one) for seed in range(3) for one in ("medusa", "tree")],
)
def test_whatever_happens_between_steps(
    plain: Engine, with_heads: Path, seed: int, proposer: str, request: pytest.FixtureRequest
) -> None:
    """Few Blocks, shared prefixes, cancelled requests, resumed ones, and Steps that run out of memory."""
    if proposer == "medusa":
        request.getfixturevalue("only_on_cpu")
    chance = random.Random(seed)
    params = [greedy(24), greedy(24, temperature=1.0, seed=5), greedy(24, repetition_penalty=1.2)]
    requests = [
        GenerationRequest(index, prompt, chance.choice(params)) for index, prompt in enumerate(PROMPTS * 3)
    ]
    expected = run(plain, requests)
    engine = make_engine(with_heads, dtype="int8", speculates=True, num_blocks=20, max_model_len=64)
    if proposer == "medusa":
        guess_with_heads(engine)
    else:
        oracle = TreeOracle if proposer == "tree" else Oracle
        guess_always(engine, oracle(outputs_of(requests, expected), 0.3, seed))
    execute = engine._runner.execute

    def may_fail(plan: StepPlan) -> Any:
        if chance.random() < 0.05 and plan.num_tokens > 1:
            raise OutOfMemoryError("out of memory")
        return execute(plan)

    engine._runner.execute = may_fail  # type: ignore[method-assign]
    for one in requests:
        engine.add(one)
    done: dict[int, Completion] = {}
    while engine.has_unfinished:
        done |= {int(str(one.id)): one for one in engine.step().completions}
        engine._speculation._num_paused = 0  # after a Step that ran out of memory
        engine.check_integrity()
        open_ids = [one.id for one in requests if one.id not in done]
        if open_ids and chance.random() < 0.06:
            name = chance.choice(open_ids)
            token_ids = engine.output_so_far(name)
            engine.cancel(name)
            done |= {int(str(one.id)): one for one in engine.step().completions}
            cancelled = done.pop(int(str(name)))
            assert cancelled.token_ids == (token_ids or ())
            engine.add(replace(requests[int(str(name))], output_token_ids=cancelled.token_ids))
    assert [done[index].token_ids for index in range(len(requests))] == [one.token_ids for one in expected]
    stats = engine.stats
    num_right = stats.medusa_right_tokens if proposer == "medusa" else stats.lookup_right_tokens
    if engine.config.device == "cpu":  # on a GPU the clock says whether a Step waits, to be guessed for
        assert num_right > {"lookup": 20, "medusa": 5, "tree": 10}[proposer]
    assert engine._scheduler.block_pool.num_used_blocks == 0


def test_less_optimization_means_no_guess(checkpoint: Path) -> None:
    engine = make_engine(checkpoint, dtype="int8", speculates=True)
    guess_always(engine, Oracle({PROMPTS[0]: [(7,) * 30]}, 0.0))
    params = SamplingParams(max_tokens=20, temperature=0, optimization=Optimization.BASIC)
    run(engine, requests_for(PROMPTS[:1], params))
    assert engine.stats.lookup_guessed_tokens == 0
