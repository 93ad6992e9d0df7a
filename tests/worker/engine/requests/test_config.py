import logging
from pathlib import Path

import pytest
import torch

from tests.fixtures.generation import greedy, make_engine, run
from worker.engine.requests.config import EngineConfig
from worker.engine.requests.errors import ConfigError
from worker.engine.requests.generation import GenerationRequest


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"dtype": "fp4"}, "fp4"),
        ({"admission": "shortest"}, "admission must be one of .*'shortest'"),
        ({"device": "tpu"}, "device must be one of cpu, cuda, not 'tpu'"),
        ({"block_size": 0}, "block_size"),
        ({"num_blocks": 0}, "num_blocks"),
        ({"max_num_sequences": -1}, "max_num_sequences"),
        ({"num_threads": 0}, "num_threads"),
        ({"max_tokens_per_step": 63}, "max_tokens_per_step"),
    ],
    ids=str,
)
def test_a_field_that_cannot_be_honoured_is_named(wrong: dict, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        EngineConfig(model=Path(), **wrong)


def test_a_device_has_limits_of_its_own() -> None:
    config = EngineConfig.for_device("cuda", model=Path(), dtype="f32")
    assert (config.device, config.max_num_sequences, config.max_tokens_per_step) == ("cuda", 256, 8192)
    config = EngineConfig.for_device("cpu", model=Path(), max_num_sequences=1000, max_tokens_per_step=None)
    assert (config.max_num_sequences, config.max_tokens_per_step) == (1000, 1000)
    assert EngineConfig.for_device("cpu", model=Path()) == EngineConfig(model=Path())


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_named(tiny_llama: Path) -> None:
    with pytest.raises(ConfigError, match=r"device 'cuda': torch .* finds no GPU"):
        make_engine(tiny_llama, device="cuda")


def test_the_longest_sequence_must_fit_the_pool(tiny_llama: Path) -> None:
    with pytest.raises(ConfigError, match="num_blocks gives 5 Blocks"):
        make_engine(tiny_llama, num_blocks=5, max_model_len=40)
    with pytest.raises(ConfigError, match="kv_cache_bytes gives 0 Blocks"):
        make_engine(tiny_llama, kv_cache_bytes=10)
    with pytest.raises(ConfigError, match="the model supports at most 128"):
        make_engine(tiny_llama, max_model_len=129)


def test_a_context_nobody_asked_for_is_cut_to_the_pool(
    tiny_llama: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        engine = make_engine(tiny_llama, num_blocks=5)
    assert engine.model_info.max_model_len == 20
    assert "max_model_len cut from 128 to 20" in caplog.text
    (completion,) = run(engine, [GenerationRequest(0, [5] * 10, greedy(100))])
    assert len(completion.token_ids) == 10
    assert completion.finish_reason == "length"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"dtype": "int8"}, torch.int8),
        ({"dtype": "int8", "kv_cache_dtype": "plain"}, torch.bfloat16),
        ({"dtype": "f32"}, torch.float32),
        ({"dtype": "f32", "kv_cache_dtype": "int8"}, torch.int8),
        ({"dtype": "bf16"}, torch.int8),
        ({"dtype": "bf16", "kv_cache_dtype": "plain"}, torch.bfloat16),
    ],
    ids=str,
)
def test_keys_and_values_have_8_bits_unless_all_is_float32(
    fields: dict[str, str], expected: torch.dtype, tiny_llama: Path
) -> None:
    engine = make_engine(tiny_llama, **{"device": "cpu"} | fields)
    caches = engine._runner._kv_cache
    assert {cache.keys.dtype for cache in caches} == {cache.values.dtype for cache in caches} == {expected}
    assert engine.model_info.kv_cache_bytes == sum(cache.num_bytes for cache in caches)


def test_a_gpu_keeps_them_plain_unless_it_is_told_otherwise(tiny_llama: Path) -> None:
    assert EngineConfig(tiny_llama, device="cuda", dtype="int8").kv_format == "plain"
    assert EngineConfig(tiny_llama, device="cuda", dtype="bf16", kv_cache_dtype="fp8").kv_format == "fp8"
