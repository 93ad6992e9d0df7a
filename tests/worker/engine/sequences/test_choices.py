"""One request, several choices: `n` and `best_of`."""

import math
from pathlib import Path

import pytest

from tests.fixtures.generation import greedy, make_engine, requests_for, run
from tests.fixtures.tiny_llama import reference_tokens, tiny_tokenizer
from worker.engine.requests.generation import GenerationRequest
from worker.engine.sequences.open_request import choice_seed
from worker.values.sampling import ParameterError, SamplingParams

PROMPT = (0, *range(20, 57))
NUM_CHOICES = 5


def sampled(**overrides: object) -> SamplingParams:
    return greedy(12, **{"temperature": 1.0, "seed": 7} | overrides)


@pytest.fixture(scope="module")
def alone(tiny_llama: Path) -> list[tuple[int, ...]]:
    """What each choice is when it is a request of its own."""
    engine = make_engine(tiny_llama)
    return [
        run(engine, requests_for([PROMPT], sampled(seed=choice_seed(7, index))))[0].token_ids
        for index in range(NUM_CHOICES)
    ]


@pytest.mark.parametrize(
    "overrides",
    [
        {},
        {"enable_prefix_cache": False},
        {"max_tokens_per_step": 8},
        {"max_num_sequences": 2},
        {"num_blocks": 22, "max_model_len": 60},
    ],
    ids=["plain", "nothing shared", "chunked", "two at once", "preempted"],
)
def test_choices_are_those_of_their_seeds(
    tiny_llama: Path, alone: list[tuple[int, ...]], overrides: dict
) -> None:
    engine = make_engine(tiny_llama, **overrides)
    mates = requests_for([(0, 9, 9), PROMPT[:9]], sampled(seed=None), first_id=1)
    completion, *others = run(engine, [GenerationRequest(0, PROMPT, sampled(n=NUM_CHOICES)), *mates])
    assert (engine.stats.preemptions > 0) is ("num_blocks" in overrides)
    assert [choice.token_ids for choice in completion.choices] == alone
    assert len(set(alone)) == NUM_CHOICES
    for choice in completion.choices:
        assert choice.text == tiny_tokenizer().decode(list(choice.token_ids))
        assert choice.finish_reason == "length"
        assert choice.logprobs is None
    assert completion.token_ids == alone[0]
    assert completion.num_output_tokens == 12 * NUM_CHOICES
    assert [len(other.choices) for other in others] == [1, 1]
    assert engine.num_running == engine.num_waiting == 0


def test_the_prompt_is_computed_once(tiny_llama: Path) -> None:
    engine = make_engine(tiny_llama)
    assert len(PROMPT) == 38
    run(engine, requests_for([PROMPT], sampled(n=NUM_CHOICES)))
    # 9 full Blocks of 4 are shared; each choice computes the two tokens after them itself.
    assert engine.stats.prefill_tokens == 38 + 2 * (NUM_CHOICES - 1)
    assert engine.stats.cached_tokens == 36 * (NUM_CHOICES - 1)


def test_without_a_seed_choices_and_runs_differ(tiny_llama: Path) -> None:
    engine = make_engine(tiny_llama)
    first, second = run(engine, requests_for([PROMPT] * 2, sampled(n=4, seed=None)))
    assert len({choice.token_ids for choice in (*first.choices, *second.choices)}) == 8


def test_choice_seeds() -> None:
    assert choice_seed(5, 0) == 5
    seeds = {choice_seed(seed, index) for seed in range(200) for index in range(50)}
    assert len(seeds) == 200 * 50
    assert max(seeds) < 2**64


def test_greedy_choices_are_all_the_one(tiny_llama: Path) -> None:
    (completion,) = run(make_engine(tiny_llama), requests_for([PROMPT], greedy(8, n=3)))
    assert [choice.token_ids for choice in completion.choices] == [
        reference_tokens(tiny_llama, PROMPT, 8)
    ] * 3


@pytest.mark.parametrize("n", [1, 3, 6])
def test_best_of_keeps_the_likeliest(tiny_llama: Path, n: int) -> None:
    engine = make_engine(tiny_llama)
    # Lengths differ, so that the mean and the sum rank them differently.
    params = {"stop_token_ids": tuple(range(60, 90)), "temperature": 1.5}
    (everything,) = run(engine, requests_for([PROMPT], sampled(n=6, logprobs=0, **params)))

    def mean(choice: object) -> float:
        logprobs = [one.logprob for one in choice.logprobs]  # type: ignore[attr-defined]
        return math.fsum(logprobs) / len(logprobs)

    assert len({len(choice.token_ids) for choice in everything.choices}) > 1
    ranked = sorted(everything.choices, key=mean, reverse=True)
    (best,) = run(engine, requests_for([PROMPT], sampled(n=n, best_of=6, **params)))
    kept = [choice.token_ids for choice in best.choices]
    if n < 6:
        assert kept == [choice.token_ids for choice in ranked[:n]]
    else:
        assert kept == [choice.token_ids for choice in everything.choices]
    assert all(choice.logprobs is None for choice in best.choices)
    assert best.num_output_tokens == sum(len(choice.token_ids) for choice in everything.choices)


def test_each_choice_stops_by_itself(tiny_llama: Path) -> None:
    engine = make_engine(tiny_llama)
    (free,) = run(engine, requests_for([PROMPT], sampled(n=8)))
    stop = free.choices[3].text[4]
    assert stop.isascii()
    (stopped,) = run(engine, requests_for([PROMPT], sampled(n=8, stop=(stop,))))
    for before, after in zip(free.choices, stopped.choices, strict=True):
        assert after.text == before.text.partition(stop)[0]
        assert after.finish_reason == ("stop" if stop in before.text else "length")
    assert {choice.finish_reason.value for choice in stopped.choices} == {"stop", "length"}


@pytest.mark.usefixtures("only_on_cpu")
def test_cancel_ends_all_choices(tiny_llama: Path, alone: list[tuple[int, ...]]) -> None:
    engine = make_engine(tiny_llama, max_num_sequences=3)
    (ended,) = {alone[0][2]}  # the first choice ends early, the last ones have not begun
    engine.add(GenerationRequest(0, PROMPT, sampled(n=NUM_CHOICES, stop_token_ids=(ended,))))
    counts = [engine.step().num_new_tokens for _ in range(5)]
    assert counts[0] == {0: 1}
    assert counts[1] == {0: 3}
    engine.cancel(0)
    (completion,) = engine.step().completions
    engine.check_integrity()
    assert not engine.has_unfinished
    assert engine.num_running == engine.num_waiting == 0
    assert [choice.finish_reason.value for choice in completion.choices] == ["cancelled"] * NUM_CHOICES
    for choice, tokens in zip(completion.choices, alone, strict=True):
        assert choice.token_ids == tokens[: len(choice.token_ids)]
    assert completion.choices[0].token_ids == alone[0][:3]
    assert completion.choices[-1].token_ids == ()
    assert completion.num_output_tokens == sum(count[0] for count in counts)


@pytest.mark.parametrize("wrong", [{"n": 0}, {"n": 129}, {"n": 2, "best_of": 1}, {"best_of": 129}], ids=str)
def test_out_of_range(wrong: dict) -> None:
    with pytest.raises(ParameterError, match="best_of" if "best_of" in wrong else "n is out of range"):
        SamplingParams(**wrong).check()
