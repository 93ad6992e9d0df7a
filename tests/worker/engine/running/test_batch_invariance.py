"""The promise of dtype int8: a request's tokens and logits have the same bits whatever runs beside it.

Not with bf16 and f32, whose products round differently by shape. Tested where oneDNN has bf16 kernels that
add in one order (AVX512 bf16); Blocks of 16, the default.
"""

import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.fixtures.generation import greedy, make_engine, run
from tests.fixtures.logits import keep_logits
from tests.fixtures.tiny_llama import write_tiny_llama
from worker.engine.engine import Engine
from worker.engine.requests.generation import GenerationRequest

NUM_TOKENS = 24
pytestmark = [
    pytest.mark.usefixtures("only_on_cpu"),
    pytest.mark.skipif(
        not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="no native bf16 products here"
    ),
]


MODELS = {
    "llama": {"attention_bias": True},
    "qwen3_window": {
        "config_class": "Qwen3Config",
        "use_sliding_window": True,
        "sliding_window": 20,
        "max_window_layers": 1,
    },
    "gemma2": {
        "config_class": "Gemma2Config",
        "query_pre_attn_scalar": 30,
        "sliding_window": 50,
        "attn_logit_softcapping": 3.0,
        "tie_word_embeddings": True,
    },
}


@pytest.fixture(scope="module", params=MODELS)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(
        tmp_path_factory.mktemp("invariance"),
        hidden_size=96,
        head_dim=32,
        intermediate_size=200,
        max_position_embeddings=512,
        **MODELS[request.param],
    )


def _prompts() -> list[list[int]]:
    numbers = random.Random(11)
    prefix = [numbers.randrange(2, 300) for _ in range(90)]
    fresh = [
        [numbers.randrange(2, 300) for _ in range(length)] for length in (1, 2, 15, 16, 17, 40, 130, 290)
    ]
    return [*fresh, *([*prefix, token] for token in range(5, 9)), prefix[:48], prefix[:50]]


class Watched:
    """An engine whose logits are kept by request and position."""

    def __init__(self, checkpoint: Path, **overrides: Any) -> None:
        self.engine: Engine = make_engine(checkpoint, **{"dtype": "int8", "block_size": 16} | overrides)
        self.logits = keep_logits(self.engine)

    def run(self, ids: Iterable[int], temperature: float = 0.0) -> dict[int, tuple[int, ...]]:
        prompts = _prompts()
        params = [greedy(NUM_TOKENS, temperature=temperature, seed=one) for one in ids]
        requests = [
            GenerationRequest(index, prompts[index], one) for index, one in zip(ids, params, strict=True)
        ]
        return {int(str(done.id)): done.token_ids for done in run(self.engine, requests)}


@pytest.fixture(scope="module")
def alone(checkpoint: Path) -> tuple[dict[int, tuple[int, ...]], dict[tuple[int, int], Tensor]]:
    watched = Watched(checkpoint, enable_prefix_cache=False)
    tokens: dict[int, tuple[int, ...]] = {}
    for index in range(len(_prompts())):
        tokens |= watched.run([index])
    return tokens, watched.logits


def _assert_same(alone: Any, watched: Watched, tokens: dict[int, tuple[int, ...]]) -> None:
    expected_tokens, expected_logits = alone
    assert tokens == expected_tokens
    assert watched.logits.keys() == expected_logits.keys()
    different = [key for key, row in watched.logits.items() if not torch.equal(row, expected_logits[key])]
    assert not different


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    "overrides",
    [
        {"max_num_sequences": 16},
        {"max_num_sequences": 3},
        {"max_num_sequences": 16, "max_tokens_per_step": 37},
        {"max_num_sequences": 2, "max_tokens_per_step": 5},
        {"max_num_sequences": 16, "enable_prefix_cache": False},
        {"max_num_sequences": 16, "num_blocks": 34, "admission": "fifo"},
    ],
    ids=str,
)
def test_same_bits_in_any_batch_and_chunk(
    checkpoint: Path, alone: Any, overrides: dict[str, Any], threads: int
) -> None:
    before = torch.get_num_threads()
    try:
        watched = Watched(checkpoint, num_threads=threads, **overrides)
        tokens = watched.run(random.Random(1).sample(range(len(_prompts())), len(_prompts())))
    finally:
        torch.set_num_threads(before)
    _assert_same(alone, watched, tokens)
    if "num_blocks" in overrides:
        assert watched.engine.stats.preemptions > 0


def test_same_bits_from_the_prefix_cache(checkpoint: Path, alone: Any) -> None:
    watched = Watched(checkpoint, max_num_sequences=16)
    ids = range(len(_prompts()))
    watched.run(ids)
    watched.logits.clear()
    cached = watched.engine.stats.cached_tokens
    _assert_same(alone, watched, watched.run(ids))
    assert watched.engine.stats.cached_tokens - cached >= 16 * 20


def test_sampled_tokens_are_the_same(checkpoint: Path) -> None:
    ids = range(len(_prompts()))
    together = Watched(checkpoint, max_num_sequences=16, max_tokens_per_step=50).run(ids, temperature=1.0)
    alone: dict[int, tuple[int, ...]] = {}
    for index in ids:
        alone |= Watched(checkpoint).run([index], temperature=1.0)
    assert together == alone


def test_same_bits_with_a_plain_cache(checkpoint: Path) -> None:
    ids = range(len(_prompts()))
    apart = Watched(checkpoint, kv_cache_dtype="plain", enable_prefix_cache=False)
    tokens: dict[int, tuple[int, ...]] = {}
    for index in ids:
        tokens |= apart.run([index])
    together = Watched(checkpoint, kv_cache_dtype="plain", max_num_sequences=16, max_tokens_per_step=37)
    together.run(ids)
    together.logits.clear()
    _assert_same((tokens, apart.logits), together, together.run(ids))
