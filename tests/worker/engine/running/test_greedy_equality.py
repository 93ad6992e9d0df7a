"""The promise of the engine: the tokens of transformers, however the work is cut."""

import random
from pathlib import Path

import pytest
import torch

from kernels.testing import assert_matches
from tests.fixtures.generation import greedy, make_engine, requests_for, run
from tests.fixtures.logits import keep_logits
from tests.fixtures.tiny_llama import CONTEXT, edit_config, load_reference, reference_tokens, write_tiny_llama

ROPE_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
MODELS = {
    "gqa": {},
    "mha_tied": {"num_key_value_heads": 4, "tie_word_embeddings": True},
    "mqa_biases_wide_heads": {
        "num_key_value_heads": 1,
        "head_dim": 20,
        "attention_bias": True,
        "mlp_bias": True,
    },
    "rope_linear": {"rope_parameters": {"rope_type": "linear", "rope_theta": 5000.0, "factor": 4.0}},
    "rope_llama3": {"rope_parameters": ROPE_LLAMA3},
    "qwen2": {"config_class": "Qwen2Config", "tie_word_embeddings": True},
    "qwen2_window": {
        "config_class": "Qwen2Config",
        "use_sliding_window": True,
        "sliding_window": 9,
        "max_window_layers": 1,
    },
    "mistral": {"config_class": "MistralConfig", "head_dim": 20, "sliding_window": 7},
    "qwen3": {"config_class": "Qwen3Config", "head_dim": 20, "attention_bias": True},
    "phi3": {"config_class": "Phi3Config", "sliding_window": 11, "pad_token_id": 1},
    "gemma2": {
        "config_class": "Gemma2Config",
        "head_dim": 20,
        "num_hidden_layers": 3,
        "query_pre_attn_scalar": 30,
        "sliding_window": 10,
        "attn_logit_softcapping": 3.0,
        "final_logit_softcapping": 20.0,
        "tie_word_embeddings": True,
    },
    "gemma3": {
        "config_class": "Gemma3TextConfig",
        "head_dim": 20,
        "num_hidden_layers": 4,
        "query_pre_attn_scalar": 30,
        "sliding_window": 10,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "tie_word_embeddings": True,
    },
    "qwen3_moe": {
        "config_class": "Qwen3MoeConfig",
        "num_hidden_layers": 3,
        "num_experts": 6,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "mlp_only_layers": [1],
        "norm_topk_prob": True,
    },
}
NUM_TOKENS = 20


@pytest.fixture(scope="module", params=MODELS)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp(request.param), **MODELS[request.param])


def _prompts() -> list[tuple[int, ...]]:
    random_numbers = random.Random(5)
    return [
        tuple(random_numbers.randrange(2, 300) for _ in range(length)) for length in (1, 3, 4, 9, 16, 33, 50)
    ]


def _assert_equal(checkpoint: Path, prompts: list[tuple[int, ...]], completions: list) -> None:
    for prompt, completion in zip(prompts, completions, strict=True):
        assert completion.token_ids == reference_tokens(checkpoint, prompt, NUM_TOKENS)
        assert completion.finish_reason == "length"
        assert completion.num_prompt_tokens == len(prompt)


def test_alone(checkpoint: Path) -> None:
    engine = make_engine(checkpoint)
    prompts = _prompts()
    _assert_equal(
        checkpoint,
        prompts,
        [run(engine, requests_for([prompt], greedy(NUM_TOKENS)))[0] for prompt in prompts],
    )


def test_batched(checkpoint: Path) -> None:
    engine = make_engine(checkpoint)
    _assert_equal(checkpoint, _prompts(), run(engine, requests_for(_prompts(), greedy(NUM_TOKENS))))
    assert engine.stats.prefill_tokens == sum(map(len, _prompts()))
    assert engine.stats.recomputed_tokens == 0


def test_chunked(checkpoint: Path) -> None:
    engine = make_engine(checkpoint, max_tokens_per_step=9, max_num_sequences=4)
    _assert_equal(checkpoint, _prompts(), run(engine, requests_for(_prompts(), greedy(NUM_TOKENS))))


def test_chunks_that_choose_no_token(checkpoint: Path) -> None:
    engine = make_engine(checkpoint, max_tokens_per_step=5, max_num_sequences=2)
    prompts = _prompts()[-2:]
    _assert_equal(checkpoint, prompts, run(engine, requests_for(prompts, greedy(NUM_TOKENS))))


def test_preempted(checkpoint: Path) -> None:
    engine = make_engine(checkpoint, num_blocks=24, max_model_len=80, enable_prefix_cache=False)
    _assert_equal(checkpoint, _prompts(), run(engine, requests_for(_prompts(), greedy(NUM_TOKENS))))
    assert engine.stats.preemptions > 0
    assert engine.stats.recomputed_tokens > 0
    assert engine.stats.prefill_tokens == sum(map(len, _prompts()))


def test_prefix_cached(checkpoint: Path) -> None:
    engine = make_engine(checkpoint)
    prefix = _prompts()[-1]
    prompts = [prefix + tail for tail in _prompts()[:4]] + [prefix[:16], prefix[:17]]
    _assert_equal(checkpoint, prompts, run(engine, requests_for(prompts, greedy(NUM_TOKENS))))
    again = run(engine, requests_for(prompts, greedy(NUM_TOKENS), first_id=100))
    _assert_equal(checkpoint, prompts, again)
    # Full Blocks only, and the last prompt token always runs.
    assert [completion.num_cached_tokens for completion in again] == [48, 52, 52, 56, 12, 16]


@pytest.mark.parametrize(
    "overrides",
    [
        {"max_num_sequences": 1},
        {},
        {"max_tokens_per_step": 9, "max_num_sequences": 4},
        {"num_blocks": 24, "max_model_len": 80},
    ],
    ids=["alone", "batched", "chunked", "preempted"],
)
def test_logits(checkpoint: Path, overrides: dict[str, int]) -> None:
    engine = make_engine(checkpoint, **overrides)
    prompts = _prompts()
    run(engine, requests_for(prompts, greedy(NUM_TOKENS)))  # leaves prefixes behind
    kept = keep_logits(engine)
    run(engine, requests_for(prompts, greedy(NUM_TOKENS)))
    assert len(kept) == NUM_TOKENS * len(prompts)
    for index, prompt in enumerate(prompts):
        ids = [*prompt, *reference_tokens(checkpoint, prompt, NUM_TOKENS)]
        with torch.inference_mode():
            expected = load_reference(checkpoint)(torch.tensor([ids])).logits[0, len(prompt) - 1 : -1]
        actual = torch.stack([kept[index, len(prompt) + offset] for offset in range(NUM_TOKENS)])
        scale = expected.abs().max()  # the table is for values of about one
        assert_matches(actual / scale, expected / scale)


def test_prefix_is_computed_once_by_sequences_that_arrive_together(checkpoint: Path) -> None:
    engine = make_engine(checkpoint)
    prefix = _prompts()[-1]
    prompts = [(*prefix, tail) for tail in range(2, 8)]
    _assert_equal(checkpoint, prompts, run(engine, requests_for(prompts, greedy(NUM_TOKENS))))
    assert engine.stats.cached_tokens == 5 * 48


def test_prefix_cached_while_blocks_run_out(checkpoint: Path) -> None:
    engine = make_engine(checkpoint, num_blocks=24, max_model_len=80, admission="fifo")
    prefix = _prompts()[4]
    prompts = [prefix + tail for tail in _prompts()[:6]] * 2
    _assert_equal(checkpoint, prompts, run(engine, requests_for(prompts, greedy(NUM_TOKENS))))
    assert engine.stats.preemptions > 0


def test_mixed_with_sampled_requests(checkpoint: Path) -> None:
    engine = make_engine(checkpoint)
    greedy_requests = requests_for(_prompts(), greedy(NUM_TOKENS))
    noise = requests_for(_prompts(), greedy(NUM_TOKENS, temperature=1.0, top_p=0.9), first_id=100)
    mixed = [request for pair in zip(greedy_requests, noise, strict=True) for request in pair]
    _assert_equal(checkpoint, _prompts(), run(engine, mixed)[: len(_prompts())])


def test_to_the_end_of_the_context(tiny_llama: Path) -> None:
    engine = make_engine(tiny_llama)
    prompt = _prompts()[-1]
    (completion,) = run(engine, requests_for([prompt], greedy(10_000)))
    assert completion.token_ids == reference_tokens(tiny_llama, prompt, CONTEXT - len(prompt))
    assert completion.finish_reason == "length"


def test_sharded_checkpoint(tmp_path: Path) -> None:
    write_tiny_llama(tmp_path, max_shard_size="40KB")
    assert (tmp_path / "model.safetensors.index.json").is_file()
    completions = run(make_engine(tmp_path), requests_for(_prompts(), greedy(NUM_TOKENS)))
    _assert_equal(tmp_path, _prompts(), completions)


def test_rope_as_transformers_4_wrote_it(tmp_path: Path) -> None:
    write_tiny_llama(tmp_path, rope_parameters=ROPE_LLAMA3)
    expected = [reference_tokens(tmp_path, prompt, NUM_TOKENS) for prompt in _prompts()]
    old = {key: value for key, value in ROPE_LLAMA3.items() if key != "rope_theta"}
    edit_config(tmp_path, rope_parameters=None, rope_theta=10000.0, rope_scaling=old)
    completions = run(make_engine(tmp_path), requests_for(_prompts(), greedy(NUM_TOKENS)))
    assert [completion.token_ids for completion in completions] == expected


def test_gemma3_as_transformers_4_wrote_it(tmp_path: Path) -> None:
    fields = {key: value for key, value in MODELS["gemma3"].items() if key != "layer_types"}
    layers = ["sliding_attention", "full_attention"] * 2
    write_tiny_llama(tmp_path, **fields, layer_types=layers)
    expected = [reference_tokens(tmp_path, prompt, NUM_TOKENS) for prompt in _prompts()]
    edit_config(
        tmp_path,
        layer_types=None,
        rope_parameters=None,
        sliding_window_pattern=2,
        rope_theta=1_000_000.0,
        rope_local_base_freq=10_000.0,
    )
    completions = run(make_engine(tmp_path), requests_for(_prompts(), greedy(NUM_TOKENS)))
    assert [completion.token_ids for completion in completions] == expected


def test_qwen3_moe_without_normalised_weights(tmp_path: Path) -> None:
    write_tiny_llama(tmp_path, **MODELS["qwen3_moe"] | {"norm_topk_prob": False, "decoder_sparse_step": 2})
    completions = run(make_engine(tmp_path), requests_for(_prompts(), greedy(NUM_TOKENS)))
    _assert_equal(tmp_path, _prompts(), completions)


@pytest.mark.parametrize("name", ["gemma2", "gemma3", "qwen3_moe", "phi3"])
def test_int8_runs_and_stays_close(name: str, tmp_path: Path) -> None:
    write_tiny_llama(tmp_path, **MODELS[name])
    logits = []
    for dtype in ("bf16", "int8"):
        engine = make_engine(tmp_path, dtype=dtype)
        kept = keep_logits(engine)
        run(engine, requests_for(_prompts(), greedy(1)))
        logits.append(torch.stack([kept[key] for key in sorted(kept)]).float())
    # Random weights have no slack: what is asked is that no part is left out.
    assert torch.nn.functional.cosine_similarity(*logits, dim=1).min() > 0.97


def test_bf16_chooses_among_the_best(tiny_llama: Path) -> None:
    completions = run(make_engine(tiny_llama, dtype="bf16"), requests_for(_prompts(), greedy(1)))
    for prompt, completion in zip(_prompts(), completions, strict=True):
        with torch.inference_mode():
            logits = load_reference(tiny_llama)(torch.tensor([prompt])).logits[0, -1]
        lead = logits.max() - logits[completion.token_ids[0]]
        assert lead < 0.05 * (logits.max() - logits.min())
