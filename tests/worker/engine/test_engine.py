import itertools
import json
import random
import re
import time
from pathlib import Path

import pytest

from tests.fixtures import generation
from tests.fixtures.generation import greedy, make_engine, requests_for, run
from tests.fixtures.tiny_llama import BEGIN, CONTEXT, END, reference_tokens, tiny_tokenizer
from worker.engine.engine import Engine
from worker.engine.requests.embedding import EmbeddingRequest
from worker.engine.requests.errors import InvalidRequestError
from worker.engine.requests.generation import GenerationRequest
from worker.values.sampling import SamplingParams

PROMPT = (5, 6, 7, 8, 9)


@pytest.fixture(scope="module")
def engine(tiny_llama: Path) -> Engine:
    return make_engine(tiny_llama)


@pytest.mark.parametrize(
    ("prompt", "problem"),
    [
        ((), "empty"),
        ("", "empty"),
        ([5] * CONTEXT, "the prompt has 128 tokens"),
        ([5, 320], r"outside 0\.\.319"),
        ([-1], "outside"),
    ],
)
def test_a_request_that_cannot_run_is_its_own_outcome(engine: Engine, prompt: object, problem: str) -> None:
    bad = GenerationRequest(0, prompt, greedy(4))  # type: ignore[arg-type]
    good = GenerationRequest(1, PROMPT, greedy(4))
    failed, completed = run(engine, [bad, good])
    assert failed.finish_reason == "error"
    assert re.search(problem, failed.error or "")
    assert failed.token_ids == ()
    assert completed.finish_reason == "length"
    assert completed.error is None


def test_a_request_starts_when_it_is_admitted(tiny_llama: Path) -> None:
    engine = make_engine(tiny_llama, max_num_sequences=1, max_tokens_per_step=16)
    engine.add(GenerationRequest(0, PROMPT, greedy(4)))
    engine.add(GenerationRequest(1, PROMPT, greedy(4)))
    engine.add(EmbeddingRequest(2, PROMPT))
    ends: dict[object, float] = {}
    starts: dict[object, float | None] = {}
    while engine.has_unfinished:
        output = engine.step()
        for ended in (*output.completions, *output.readings):
            ends[ended.id], starts[ended.id] = time.monotonic(), ended.started_at
    order = sorted(starts, key=lambda one: ends[one])
    for before, after in itertools.pairwise(order):
        started, next_started = starts[before], starts[after]
        assert started is not None
        assert next_started is not None
        assert started < next_started, "there is room for one"
    engine.add(GenerationRequest(3, PROMPT, greedy(4)))
    engine.cancel(3)
    (never_ran,) = engine.step().completions
    assert never_ran.started_at is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_tokens": 0},
        {"temperature": -0.1},
        {"temperature": float("nan")},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"top_k": -1},
        {"min_p": 2.0},
        {"stop": ("",)},
    ],
    ids=str,
)
def test_sampling_params_name_the_field(wrong: dict) -> None:
    with pytest.raises(InvalidRequestError, match=next(iter(wrong))):
        GenerationRequest(0, PROMPT, SamplingParams(**wrong))


def test_an_id_can_be_used_again_only_after_it_ended(engine: Engine) -> None:
    request = GenerationRequest(0, PROMPT, greedy(2))
    engine.add(request)
    with pytest.raises(ValueError, match="already running"):
        engine.add(request)
    run(engine, [])
    assert len(run(engine, [request])) == 1


def test_a_prompt_that_leaves_no_room_says_so(engine: Engine) -> None:
    longest = engine.model_info.max_model_len
    prompts = [[5] * (longest - 1), [5] * longest, []]
    ended = run(engine, [GenerationRequest(i, prompt, greedy(1)) for i, prompt in enumerate(prompts)])
    assert [one.is_too_long for one in sorted(ended, key=lambda one: one.id)] == [False, True, False]


def test_a_context_cuts_an_output_only_where_it_may(engine: Engine) -> None:
    most = CONTEXT - len(PROMPT)
    limits = ((most + 1, True), (most + 1, False), (most, True))
    asked = [
        GenerationRequest(number, PROMPT, greedy(max_tokens, must_fit=must_fit))
        for number, (max_tokens, must_fit) in enumerate(limits)
    ]
    refused, cut, fitting = run(engine, asked)
    assert refused.is_too_long
    assert f"5 tokens and max_tokens is {most + 1}" in str(refused.error)
    assert cut.token_ids == fitting.token_ids
    assert len(cut.token_ids) == most


def test_text_prompt_and_text_output(engine: Engine) -> None:
    text = "the quick brown"
    ids = tuple(tiny_tokenizer().encode(text).ids)
    (completion,) = run(engine, [GenerationRequest(0, text, greedy(8))])
    assert completion.num_prompt_tokens == len(ids)
    assert completion.token_ids == reference_tokens(engine.config.model, ids, 8)
    assert completion.text == tiny_tokenizer().decode(list(completion.token_ids))


def _ascii_span(engine: Engine) -> tuple[tuple[int, ...], str, str]:
    """A prompt, its greedy text, and three ASCII characters inside that text which cross a token border."""
    random_numbers = random.Random(1)
    for _ in range(200):
        prompt = tuple(random_numbers.randrange(2, 320) for _ in range(6))
        (completion,) = run(engine, [GenerationRequest(0, prompt, greedy(24))])
        for match in re.finditer(r"[a-z ]{3}", completion.text[4:]):
            stop = match.group()
            pieces = [tiny_tokenizer().decode([token]) for token in completion.token_ids]
            if not any(stop in piece for piece in pieces):
                return prompt, completion.text, stop
    raise AssertionError("no such text")


def test_stop_string_across_a_token_border(engine: Engine) -> None:
    prompt, text, stop = _ascii_span(engine)
    (completion,) = run(engine, [GenerationRequest(0, prompt, greedy(24, stop=("~~~~", stop)))])
    assert completion.text == text[: text.index(stop)]
    assert completion.finish_reason == "stop"
    assert len(completion.token_ids) < 24
    assert stop in tiny_tokenizer().decode(list(completion.token_ids))


def test_stop_token_ends_the_output_and_stays_out_of_the_text(engine: Engine) -> None:
    tokens = reference_tokens(engine.config.model, PROMPT, 10)
    index = next(i for i, token in enumerate(tokens) if i > 2 and token not in tokens[:i])
    (completion,) = run(engine, [GenerationRequest(0, PROMPT, greedy(10, stop_token_ids=(tokens[index],)))])
    assert completion.finish_reason == "stop"
    assert completion.token_ids == tokens[: index + 1]
    assert completion.text == tiny_tokenizer().decode(list(tokens[:index]))


@pytest.mark.parametrize("eos", [3, [1, 3], None])
def test_end_tokens_come_from_the_checkpoint(tiny_llama: Path, tmp_path: Path, eos: object) -> None:
    for file in tiny_llama.iterdir():
        (tmp_path / file.name).symlink_to(file)
    tokens = reference_tokens(tiny_llama, PROMPT, 10)
    index = next(i for i, token in enumerate(tokens) if i > 2 and token not in tokens[:i])
    values = {3: tokens[index], 1: END}
    given = [values[item] for item in eos] if isinstance(eos, list) else values[3] if eos else None
    (tmp_path / "generation_config.json").unlink()
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": given}))
    engine = make_engine(tmp_path)
    stopped, ignored = run(
        engine, [GenerationRequest(i, PROMPT, greedy(10, ignore_eos=bool(i))) for i in (0, 1)]
    )
    assert ignored.token_ids == tokens
    if eos is None:
        assert stopped.token_ids == tokens
    else:
        assert stopped.token_ids == tokens[: index + 1]
        assert stopped.finish_reason == "stop"


@pytest.mark.usefixtures("only_on_cpu")
def test_cancel_waiting_and_running(tiny_llama: Path) -> None:
    engine = make_engine(tiny_llama, max_num_sequences=2)
    for request in requests_for([PROMPT] * 4, greedy(20)):
        engine.add(request)
    assert engine.step().num_new_tokens == {0: 1}  # the others wait to share its prefix
    engine.step()
    assert (engine.num_running, engine.num_waiting) == (2, 2)
    engine.cancel(0)
    engine.cancel(3)
    engine.cancel("unknown")
    completions = {completion.id: completion for completion in engine.step().completions}
    engine.check_integrity()
    assert {key: completion.finish_reason.value for key, completion in completions.items()} == {
        0: "cancelled",
        3: "cancelled",
    }
    assert completions[0].token_ids == reference_tokens(tiny_llama, PROMPT, 2)
    assert completions[0].text == tiny_tokenizer().decode(list(completions[0].token_ids))
    assert completions[3].token_ids == ()
    rest = run(engine, [])
    assert [completion.token_ids for completion in rest] == [reference_tokens(tiny_llama, PROMPT, 20)] * 2


def test_a_seed_gives_the_same_tokens_in_any_batch(tiny_llama: Path) -> None:
    def params(seed: int) -> SamplingParams:
        return greedy(16, temperature=1.0, top_p=0.95, seed=seed)

    prompts = [(BEGIN, *range(2, 2 + length)) for length in (1, 7, 20, 40)]
    alone = [
        run(make_engine(tiny_llama), [GenerationRequest(0, prompt, params(seed))])[0].token_ids
        for seed, prompt in enumerate(prompts)
    ]
    together = [GenerationRequest(i, prompt, params(i)) for i, prompt in enumerate(prompts)]
    strangers = requests_for(prompts * 2, greedy(30, temperature=1.3), first_id=100)
    short_of_blocks = make_engine(tiny_llama, num_blocks=32, enable_prefix_cache=False)
    completions = run(short_of_blocks, strangers[:4] + together + strangers[4:])
    assert short_of_blocks.stats.preemptions > 0
    assert [completion.token_ids for completion in completions[:4]] == alone
    others = run(make_engine(tiny_llama), [GenerationRequest(0, prompts[0], params(99))])
    assert others[0].token_ids != alone[0]


def test_without_a_seed_runs_differ(engine: Engine) -> None:
    completions = run(engine, requests_for([PROMPT] * 4, greedy(16, temperature=1.0)))
    assert len({completion.token_ids for completion in completions}) == 4


def test_counters_and_model_info(tiny_llama: Path) -> None:
    engine = make_engine(tiny_llama)
    run(engine, requests_for([PROMPT, (*PROMPT, 3)], greedy(6)))
    assert engine.stats.prefill_tokens + engine.stats.cached_tokens == 11
    assert engine.stats.decode_tokens == 12
    assert engine.stats.steps <= 8
    assert not engine.has_unfinished
    info = engine.model_info
    assert (info.architecture, info.dtype, info.device) == (
        "LlamaForCausalLM",
        "f32",
        generation.DEFAULTS["device"],
    )
    assert info.max_model_len == CONTEXT
    assert info.num_blocks == 8 * CONTEXT // 4
    assert info.kv_cache_bytes == info.num_blocks * 4 * 2 * 2 * 2 * 12 * 4
    assert info.weight_bytes == 4 * info.num_parameters
