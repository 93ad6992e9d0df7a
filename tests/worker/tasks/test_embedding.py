"""Prompts are embedded by the model that the settings name, beside the served one."""

from pathlib import Path

import pytest

from tests.fixtures.tiny_llama import write_tiny_llama
from worker.settings import read_settings
from worker.tuning.requests import TunedRequest
from worker.tuning.similarities import similarities
from worker.values.sampling import SamplingParams


def test_the_embedding_model_embeds_and_the_served_one_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = write_tiny_llama(tmp_path / "served", seed=1)
    own = write_tiny_llama(tmp_path / "own", seed=2)
    texts = ("a small dog", "a small dog", "a small dog", "quite another text", "x", "long " * 500)
    prompts = [TunedRequest(text, SamplingParams()) for text in texts]
    monkeypatch.setenv("HEADRACE_MODEL", str(served))
    alone = similarities(read_settings(), prompts)
    monkeypatch.setenv("HEADRACE_EMBEDDING_MODEL", str(own))
    beside = similarities(read_settings(), prompts)
    for found in (alone, beside):
        assert found[0] == pytest.approx(1.0, abs=1e-5)
        assert found[1] is not None
        assert found[1] < 0.999
        assert found[2] is None, "a prompt is too long for the model"
    assert alone[1] != beside[1]
