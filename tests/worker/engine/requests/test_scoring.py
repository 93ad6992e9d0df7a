"""Scores equal those of transformers in float32, and a shared prompt is computed once."""

import itertools
from pathlib import Path

import pytest
import torch

from kernels.testing import assert_matches
from tests.fixtures.generation import greedy, make_engine, requests_for
from tests.fixtures.readings import (
    completions,
    random_prompts,
    reference_logprobs,
    run_all,
    run_scores,
    watch_preemptions,
)
from tests.fixtures.tiny_llama import CONTEXT, reference_tokens, tiny_tokenizer, write_tiny_llama
from tests.worker.engine.running.test_greedy_equality import MODELS
from worker.engine.choosing import row_reader
from worker.engine.requests.batch_policy import BatchPolicy
from worker.engine.requests.embedding import EmbeddingRequest
from worker.engine.requests.errors import InvalidRequestError
from worker.engine.requests.scoring import Scores, ScoringRequest
from worker.values.requests import EmbeddingParams, Pooling

PROMPTS = random_prompts(1, 4, 9, 33, 50)


@pytest.fixture(scope="module", params=MODELS)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp(request.param), **MODELS[request.param])


def score_requests(checkpoint: Path, *, first_id: int = 0) -> list[ScoringRequest]:
    """Continuations of every shape: greedy, of one token, sharing a beginning, one twice, one in another."""
    requests = []
    for index, prompt in enumerate(PROMPTS, first_id):
        best = reference_tokens(checkpoint, prompt, 6)
        other = random_prompts(3, 9, seed=index)
        continuations = [best, best[:1], (7,), (8,), *other, (*best[:5], 9), best[:3], (7,), (*other[0], 11)]
        requests.append(ScoringRequest(index, prompt, continuations))
    return requests


def assert_equal(checkpoint: Path, found: list[Scores], requests: list[ScoringRequest]) -> None:
    for request, scores in zip(requests, found, strict=True):
        assert scores.error is None
        assert scores.num_prompt_tokens == len(request.prompt)
        for continuation, score in zip(request.continuations, scores.continuations, strict=True):
            expected, is_greedy = reference_logprobs(checkpoint, request.prompt, continuation)  # type: ignore[arg-type]
            assert score.token_ids == tuple(continuation)
            scale = max(map(abs, expected)) + 1  # the table is for values of about one
            assert_matches(torch.tensor(score.logprobs) / scale, torch.tensor(expected) / scale)
            assert score.is_greedy is is_greedy
    first = found[0].continuations
    assert (first[0].is_greedy, first[2].logprobs == first[8].logprobs) == (True, True)


@pytest.mark.parametrize(
    "overrides",
    [
        {"max_num_sequences": 1},
        {"max_num_sequences": 16},
        {"max_tokens_per_step": 9, "max_num_sequences": 4},
        {"max_tokens_per_step": 7, "max_num_sequences": 4, "enable_prefix_cache": False},
    ],
    ids=["alone", "packed", "chunked", "uncached"],
)
def test_equal_to_transformers(checkpoint: Path, overrides: dict[str, int]) -> None:
    engine = make_engine(checkpoint, **overrides)
    requests = score_requests(checkpoint)
    assert_equal(checkpoint, run_scores(engine, requests), requests)
    again = score_requests(checkpoint, first_id=100)
    assert_equal(checkpoint, run_scores(engine, again), again)


def test_beside_generation_and_embeddings(checkpoint: Path) -> None:
    engine = make_engine(checkpoint, max_tokens_per_step=24)
    requests = score_requests(checkpoint)
    generation = requests_for(PROMPTS, greedy(20), first_id=100)
    embeddings = [
        EmbeddingRequest(200 + i, prompt, EmbeddingParams(Pooling.MEAN)) for i, prompt in enumerate(PROMPTS)
    ]
    mixed = itertools.chain.from_iterable(zip(generation, requests, embeddings, strict=True))
    outcomes = run_all(engine, mixed)
    assert_equal(checkpoint, [one for one in outcomes if isinstance(one, Scores)], requests)
    for prompt, completion in zip(PROMPTS, completions(outcomes), strict=True):
        assert completion.token_ids == reference_tokens(checkpoint, prompt, 20)


def test_preempted(tiny_llama: Path) -> None:
    engine = make_engine(
        tiny_llama,
        num_blocks=24,
        max_model_len=80,
        max_num_sequences=3,
        max_tokens_per_step=3,
        batch_policy=BatchPolicy(max_memory_share=1.0),
        admission="fifo",
    )
    preempted = watch_preemptions(engine)
    generation = requests_for(random_prompts(20, 20, seed=9), greedy(40), first_id=100)
    prompt, *continuations = random_prompts(3, 36, 21, 9, seed=4)
    requests = [ScoringRequest(0, prompt, [reference_tokens(tiny_llama, prompt, 2), *continuations])]
    found = [one for one in run_all(engine, [*generation, *requests]) if isinstance(one, Scores)]
    assert preempted  # by decodes that grew into their Blocks
    for score in found[0].continuations:
        expected, is_greedy = reference_logprobs(tiny_llama, prompt, score.token_ids)
        assert score.logprobs == pytest.approx(expected, abs=1e-4)
        assert score.is_greedy is is_greedy


def test_a_shared_prompt_is_computed_once(tiny_llama: Path) -> None:
    engine = make_engine(tiny_llama)
    prompt = PROMPTS[-1]  # 12 full Blocks and 2 tokens
    continuations = random_prompts(3, 5, 6, 8)
    run_scores(engine, [ScoringRequest(0, prompt, continuations)])
    # Each last token needs no run; all but one Sequence find the full Blocks.
    assert engine.stats.prefill_tokens == 50 + 2 + 3 * 2 + 4 + 5 + 7
    assert engine.stats.cached_tokens == 3 * 48


def test_labels_of_one_token_take_one_step_and_no_token_of_their_own(tiny_llama: Path) -> None:
    engine = make_engine(tiny_llama)
    labels = [(token,) for token in range(10, 60)]
    (scores,) = run_scores(engine, [ScoringRequest(0, PROMPTS[3], labels)])
    assert (engine.stats.steps, engine.stats.prefill_tokens) == (1, len(PROMPTS[3]))
    assert len({sum(score.logprobs) for score in scores.continuations}) == 50


def test_the_whole_vocabulary_adds_up_to_one(tiny_llama: Path) -> None:
    labels = [(token,) for token in range(320)]
    (scores,) = run_scores(make_engine(tiny_llama), [ScoringRequest(0, PROMPTS[2], labels)])
    logprobs = torch.tensor([sum(score.logprobs) for score in scores.continuations], dtype=torch.float64)
    assert float(logprobs.exp().sum()) == pytest.approx(1.0, abs=1e-5)
    assert int(logprobs.argmax()) == reference_tokens(tiny_llama, PROMPTS[2], 1)[0]
    assert [score.is_greedy for score in scores.continuations].count(True) == 1


def test_logits_are_made_a_part_at_a_time(tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine(tiny_llama)
    requests = score_requests(tiny_llama)
    whole = run_scores(engine, requests)
    monkeypatch.setattr(row_reader, "MAX_LOGITS", 3 * 320)
    sizes: list[int] = []
    logits_of = engine._runner._model.logits
    monkeypatch.setattr(
        engine._runner._model, "logits", lambda hidden: sizes.append(len(hidden)) or logits_of(hidden)
    )
    parts = run_scores(engine, requests)
    assert max(sizes) == 3
    for one, other in zip(whole, parts, strict=True):
        for score, same in zip(one.continuations, other.continuations, strict=True):
            assert same.logprobs == pytest.approx(score.logprobs, abs=1e-5)


def test_scores_are_the_logprobs_of_generation(tiny_llama: Path) -> None:
    engine = make_engine(tiny_llama)
    (completion,) = completions(run_all(engine, requests_for([PROMPTS[3]], greedy(8, logprobs=0))))
    (scores,) = run_scores(engine, [ScoringRequest(0, PROMPTS[3], [completion.token_ids])])
    chosen = [one.logprob for one in completion.logprobs or ()]
    assert scores.continuations[0].logprobs == pytest.approx(chosen, abs=1e-5)
    assert scores.continuations[0].is_greedy


def test_texts_are_tokenized_apart(tiny_llama: Path) -> None:
    engine = make_engine(tiny_llama)
    prompt, texts = "the quick brown", [" fox", " dog", "s", " fox"]
    ids = [tiny_tokenizer().encode(text).ids for text in texts]
    (scores,) = run_scores(engine, [ScoringRequest(0, prompt, texts)])
    assert [list(score.token_ids) for score in scores.continuations] == ids
    prompt_ids = tiny_tokenizer().encode(prompt).ids
    for score in scores.continuations:
        expected, _ = reference_logprobs(tiny_llama, prompt_ids, score.token_ids)
        assert score.logprobs == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"prompt": ()}, "the prompt is empty"),
        ({"prompt": (320,)}, "the prompt has a token id outside 0..319"),
        ({"continuations": [(5,), ()]}, "continuations[1] is empty"),
        ({"continuations": ["a", ""]}, "continuations[1] is empty"),
        ({"continuations": [(5, 400)]}, "continuations[0] has a token id outside 0..319"),
        (
            {"prompt": [5] * CONTEXT, "continuations": [(6,)]},
            "the prompt and continuations[0] have 129 tokens; this model takes at most 128",
        ),
    ],
)
def test_what_cannot_run_is_its_own_outcome(tiny_llama: Path, fields: dict, problem: str) -> None:
    bad = ScoringRequest(**{"id": 1, "prompt": (5,), "continuations": [(6,)]} | fields)
    good = score_requests(tiny_llama)[:1]
    scored, failed = run_scores(make_engine(tiny_llama), [*good, bad])
    assert (failed.error, failed.continuations, failed.is_cancelled) == (problem, (), False)
    assert_equal(tiny_llama, [scored], good)


def test_a_prompt_with_continuation_may_fill_the_context(tiny_llama: Path) -> None:
    prompt, continuation = random_prompts(CONTEXT - 5, 5)
    (scores,) = run_scores(make_engine(tiny_llama), [ScoringRequest(0, prompt, [continuation])])
    expected, _ = reference_logprobs(tiny_llama, prompt, continuation)
    assert scores.continuations[0].logprobs == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("continuations", [[], "yes"], ids=str)
def test_requests_name_the_field(continuations: object) -> None:
    with pytest.raises(InvalidRequestError, match="continuations"):
        ScoringRequest(0, "text", continuations)  # type: ignore[arg-type]


def test_cancel_while_some_continuations_are_done(tiny_llama: Path) -> None:
    engine = make_engine(tiny_llama, max_num_sequences=2)
    requests = score_requests(tiny_llama)[:2]
    for request in requests:
        engine.add(request)
    engine.step()
    assert engine.num_running + engine.num_waiting > 0
    engine.cancel(0)
    outcomes = {reading.id: reading for reading in engine.step().readings}
    engine.check_integrity()
    assert (outcomes[0].is_cancelled, outcomes[0].continuations) == (True, ())  # type: ignore[union-attr]
    (left,) = run_scores(engine, [])
    assert left.id == 1
    assert len(left.continuations) == len(requests[1].continuations)


@pytest.mark.skipif(not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="no native bf16 products here")
def test_int8_has_the_same_bits_in_any_batch_and_chunk(tmp_path: Path) -> None:
    write_tiny_llama(
        tmp_path, hidden_size=96, head_dim=32, intermediate_size=200, max_position_embeddings=512
    )
    fields = {"dtype": "int8", "block_size": 16}
    requests = [
        ScoringRequest(index, prompt, random_prompts(1, 3, 20, 40, seed=index))
        for index, prompt in enumerate(random_prompts(1, 15, 16, 17, 130, 290))
    ]
    alone = [
        run_scores(make_engine(tmp_path, **fields, enable_prefix_cache=False), [request])[0]
        for request in requests
    ]
    for overrides in ({"max_num_sequences": 16}, {"max_num_sequences": 3, "max_tokens_per_step": 37}):
        engine = make_engine(tmp_path, **fields, **overrides)
        noise = requests_for(random_prompts(20, 60, seed=3), greedy(30), first_id=100)
        found = run_scores(engine, [*noise, *requests])
        assert [one.continuations for one in found] == [one.continuations for one in alone]
