"""Embeddings equal those of transformers in float32, however the work is cut and whatever runs beside it."""

import itertools
import math
from pathlib import Path

import pytest
import torch

from kernels.testing import assert_matches
from tests.fixtures.generation import greedy, make_engine, requests_for
from tests.fixtures.readings import (
    completions,
    random_prompts,
    reference_embedding,
    run_all,
    run_embeddings,
    watch_preemptions,
)
from tests.fixtures.tiny_llama import CONTEXT, reference_tokens, tiny_tokenizer, write_tiny_llama
from tests.worker.engine.running.test_greedy_equality import MODELS
from worker.engine.requests.batch_policy import BatchPolicy
from worker.engine.requests.embedding import Embedding, EmbeddingRequest
from worker.engine.requests.errors import InvalidRequestError
from worker.engine.requests.generation import Answer
from worker.values.requests import EmbeddingParams, Pooling

LAST, MEAN = EmbeddingParams(Pooling.LAST), EmbeddingParams(Pooling.MEAN)

PROMPTS = random_prompts(1, 3, 4, 9, 16, 33, 50)


@pytest.fixture(scope="module", params=MODELS)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp(request.param), **MODELS[request.param])


def embed(*, first_id: int = 0, prompts: list[tuple[int, ...]] = PROMPTS) -> list[EmbeddingRequest]:
    """Each prompt with each pooling."""
    pairs = itertools.product(prompts, Pooling)
    return [
        EmbeddingRequest(index, prompt, EmbeddingParams(pooling))
        for index, (prompt, pooling) in enumerate(pairs, first_id)
    ]


def assert_equal(checkpoint: Path, outcomes: list[Answer], requests: list[EmbeddingRequest]) -> None:
    found = {outcome.id: outcome for outcome in outcomes if isinstance(outcome, Embedding)}
    for request in requests:
        outcome = found[request.id]
        assert outcome.error is None
        assert outcome.num_prompt_tokens == len(request.prompt)
        expected = reference_embedding(
            checkpoint,
            [int(token) for token in request.prompt],
            request.params.pooling,
            dimensions=request.params.dimensions,
            normalize=request.params.normalize,
        )
        scale = expected.abs().max()  # the table is for values of about one
        assert_matches(torch.tensor(outcome.vector) / scale, expected / scale)


@pytest.mark.parametrize(
    "overrides",
    [
        {"max_num_sequences": 1},
        {"max_num_sequences": 16},
        {"max_tokens_per_step": 9, "max_num_sequences": 4},
        {"max_tokens_per_step": 5, "max_num_sequences": 2, "enable_prefix_cache": False},
    ],
    ids=["alone", "packed", "chunked", "small_chunks"],
)
def test_equal_to_transformers(checkpoint: Path, overrides: dict[str, int]) -> None:
    engine = make_engine(checkpoint, **overrides)
    assert_equal(checkpoint, run_all(engine, embed()), embed())


def test_beside_generation(checkpoint: Path) -> None:
    engine = make_engine(checkpoint, max_tokens_per_step=20)
    generation = requests_for(PROMPTS, greedy(20), first_id=100)
    mixed = [request for pair in zip(generation, embed(), strict=False) for request in pair]
    outcomes = run_all(engine, mixed)
    assert_equal(checkpoint, outcomes, embed()[:7])
    for prompt, completion in zip(PROMPTS, completions(outcomes), strict=True):
        assert completion.token_ids == reference_tokens(checkpoint, prompt, 20)


@pytest.mark.usefixtures("only_on_cpu")
def test_one_step_runs_both(tiny_llama: Path) -> None:
    engine = make_engine(tiny_llama)
    for request in [*requests_for(PROMPTS[:2], greedy(4), first_id=100), *embed()[:4]]:
        engine.add(request)
    output = engine.step()
    assert output.num_new_tokens == {100: 1, 101: 1}
    assert sorted(reading.id for reading in output.readings) == [0, 1, 2, 3]
    assert engine.num_running == 2  # the readings gave their Blocks back at once


def test_packed_without_padding(tiny_llama: Path) -> None:
    engine = make_engine(tiny_llama, max_num_sequences=16)
    run_all(engine, [request for request in embed() if request.params == MEAN])
    assert engine.stats.steps == 1
    assert engine.stats.prefill_tokens == sum(map(len, PROMPTS))


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
    prompts = random_prompts(40, 39, seed=8)
    readings = [EmbeddingRequest(index, prompt, MEAN) for index, prompt in enumerate(prompts)]
    assert_equal(tiny_llama, run_all(engine, [*generation, *readings]), readings)
    assert preempted  # by decodes that grew into their Blocks


@pytest.mark.parametrize("pooling", Pooling)
@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("dimensions", [None, 1, 17, 48])
def test_dimensions_and_length(
    tiny_llama: Path, pooling: Pooling, normalize: bool, dimensions: int | None
) -> None:
    request = EmbeddingRequest(0, PROMPTS[5], EmbeddingParams(pooling, normalize, dimensions))
    outcomes = run_embeddings(make_engine(tiny_llama), [request])
    assert_equal(tiny_llama, [*outcomes], [request])
    vector = outcomes[0].vector
    assert len(vector) == (dimensions or 48)
    assert math.isclose(math.hypot(*vector), 1.0, abs_tol=1e-6) is normalize


def test_a_whole_context_fits_and_one_more_does_not(tiny_llama: Path) -> None:
    (whole, over) = random_prompts(CONTEXT, CONTEXT + 1)
    requests = [
        EmbeddingRequest(0, whole, MEAN),
        EmbeddingRequest(1, over, MEAN),
    ]
    outcomes = run_embeddings(make_engine(tiny_llama, max_tokens_per_step=50), requests)
    assert_equal(tiny_llama, [outcomes[0]], requests[:1])
    assert outcomes[1].error == "the prompt has 129 tokens; this model takes at most 128"
    assert (outcomes[0].is_too_long, outcomes[1].is_too_long) == (False, True)


def test_last_pooling_shares_prefixes_and_mean_pooling_does_not(tiny_llama: Path) -> None:
    engine = make_engine(tiny_llama)
    prefix = PROMPTS[-1]
    prompts = [(*prefix, token) for token in range(5, 8)]
    last = [EmbeddingRequest(index, prompt, LAST) for index, prompt in enumerate(prompts)]
    mean = [EmbeddingRequest(index, prompt, MEAN) for index, prompt in enumerate(prompts)]
    means = run_embeddings(engine, mean)
    assert engine.stats.cached_tokens == 0
    assert_equal(tiny_llama, [*means], mean)
    first = run_embeddings(engine, last)
    assert [outcome.num_cached_tokens for outcome in first] == [0, 48, 48]  # the means left nothing behind
    assert_equal(tiny_llama, [*first], last)
    again = run_embeddings(engine, mean)  # every token runs, though the cache has them
    assert [outcome.num_cached_tokens for outcome in again] == [0, 0, 0]
    assert_equal(tiny_llama, [*again], mean)


def test_a_prompt_that_is_cached_whole_still_gives_its_last_row(tiny_llama: Path) -> None:
    engine = make_engine(tiny_llama)
    request = EmbeddingRequest(0, PROMPTS[4], LAST)  # four full Blocks
    run_all(engine, requests_for([PROMPTS[4]], greedy(1)))
    (outcome,) = run_embeddings(engine, [request])
    assert outcome.num_cached_tokens == 12
    assert_equal(tiny_llama, [outcome], [request])


def test_text_is_tokenized_as_asked(tiny_llama: Path) -> None:
    text = "the quick brown fox"
    ids = tiny_tokenizer().encode(text).ids
    engine = make_engine(tiny_llama)
    requests = [
        EmbeddingRequest(0, text, MEAN),
        EmbeddingRequest(1, ids, MEAN),
    ]
    from_text, from_ids = run_embeddings(engine, requests)
    assert from_text.vector == pytest.approx(from_ids.vector, abs=1e-6)
    assert from_text.num_prompt_tokens == len(ids)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"prompt": ()}, "the prompt is empty"),
        ({"prompt": ""}, "the prompt is empty"),
        ({"prompt": (5, 320)}, "the prompt has a token id outside 0..319"),
        ({"prompt": (-1,)}, "the prompt has a token id outside 0..319"),
        (
            {"params": EmbeddingParams(dimensions=49)},
            "dimensions is 49, but the model's vectors have only 48",
        ),
    ],
)
def test_what_cannot_run_is_its_own_outcome(tiny_llama: Path, fields: dict, problem: str) -> None:
    bad = EmbeddingRequest(**{"id": 0, "prompt": (5,)} | fields)
    good = EmbeddingRequest(1, PROMPTS[2])
    failed, embedded = run_embeddings(make_engine(tiny_llama), [bad, good])
    assert (failed.error, failed.vector, failed.is_cancelled) == (problem, (), False)
    assert_equal(tiny_llama, [embedded], [good])


def test_a_vector_has_a_dimension() -> None:
    with pytest.raises(InvalidRequestError, match="dimensions must be at least 1"):
        EmbeddingRequest(0, "text", EmbeddingParams(dimensions=0))


def test_an_id_is_of_one_request_whatever_its_kind(tiny_llama: Path) -> None:
    engine = make_engine(tiny_llama)
    engine.add(EmbeddingRequest(0, PROMPTS[0]))
    engine.add(requests_for(PROMPTS[:1], greedy(1), first_id=1)[0])
    for request in (EmbeddingRequest(1, PROMPTS[0]), requests_for(PROMPTS[:1], greedy(1))[0]):
        with pytest.raises(ValueError, match="already running"):
            engine.add(request)
    assert len(run_all(engine, [])) == 2


def test_cancel_queued_and_running(tiny_llama: Path) -> None:
    engine = make_engine(
        tiny_llama, max_tokens_per_step=10, max_num_sequences=2, batch_policy=BatchPolicy(max_items=2)
    )
    requests = [EmbeddingRequest(index, PROMPTS[-1], MEAN) for index in range(5)]
    for request in requests:
        engine.add(request)
    engine.step()
    assert (engine.num_running, engine.num_waiting) == (1, 4)
    for index in (0, 1, 3):
        engine.cancel(index)
    engine.cancel("unknown")
    cancelled = engine.step().readings
    engine.check_integrity()
    assert [(reading.id, reading.is_cancelled, reading.error) for reading in cancelled] == [
        (0, True, None),
        (1, True, None),
        (3, True, None),
    ]
    rest = run_embeddings(engine, [])
    assert [outcome.id for outcome in rest] == [2, 4]
    assert_equal(tiny_llama, [*rest], [requests[index] for index in (2, 4)])


@pytest.mark.skipif(not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="no native bf16 products here")
def test_int8_has_the_same_bits_in_any_batch_and_chunk(tmp_path: Path) -> None:
    write_tiny_llama(
        tmp_path, hidden_size=96, head_dim=32, intermediate_size=200, max_position_embeddings=512
    )
    requests = embed(prompts=random_prompts(1, 2, 15, 16, 17, 40, 130, 290))
    fields = {"dtype": "int8", "block_size": 16}
    alone = [run_embeddings(make_engine(tmp_path, **fields), [request])[0].vector for request in requests]
    for overrides in ({"max_num_sequences": 16}, {"max_num_sequences": 3, "max_tokens_per_step": 37}):
        engine = make_engine(tmp_path, **fields, **overrides)
        noise = requests_for(random_prompts(20, 60, seed=3), greedy(30), first_id=100)
        outcomes = run_embeddings(engine, [*noise, *requests])
        assert [outcome.vector for outcome in outcomes] == alone
