"""The decoder that is trained is the one that the Engine runs."""

from pathlib import Path

import pytest
import torch

from tests.fixtures.generation import greedy, make_engine, requests_for, run
from tests.fixtures.tiny_llama import edit_config, load_reference, write_tiny_llama
from worker.engine.requests.errors import MissingTensorError, UnsupportedModelError
from worker.engine.training.decoder import TrainableDecoder

IDS = torch.arange(60).view(2, 30) % 37 + 5


@pytest.mark.parametrize("is_tied", [False, True])
def test_its_logits_are_those_of_the_checkpoint(tmp_path: Path, is_tied: bool) -> None:
    write_tiny_llama(
        tmp_path,
        tie_word_embeddings=is_tied,
        rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 500.0},
    )
    model = TrainableDecoder.load(tmp_path)
    found = model.hidden(IDS) @ model.head.T
    with torch.inference_mode():
        torch.testing.assert_close(found, load_reference(tmp_path)(IDS).logits, atol=2e-4, rtol=1e-4)


def test_the_engine_runs_what_it_saves(tmp_path: Path) -> None:
    source = write_tiny_llama(tmp_path / "source")
    TrainableDecoder.load(source).save(tmp_path / "copy", source, torch.float32)
    requests = requests_for([(5, 6, 7), (9, 8) * 10], greedy(12))
    one, other = (
        [done.token_ids for done in run(make_engine(directory), requests)]
        for directory in (source, tmp_path / "copy")
    )
    assert one == other


def test_what_cannot_be_trained_is_refused(tmp_path: Path) -> None:
    directory = write_tiny_llama(tmp_path)
    edit_config(directory, attention_bias=True)
    with pytest.raises(UnsupportedModelError, match="biases"):
        TrainableDecoder.load(directory)
    edit_config(directory, attention_bias=False, num_hidden_layers=3)
    with pytest.raises(MissingTensorError, match=r"layers\.2"):
        TrainableDecoder.load(directory)
    edit_config(directory, architectures=["Qwen2ForCausalLM"])
    with pytest.raises(UnsupportedModelError, match="only LlamaForCausalLM"):
        TrainableDecoder.load(directory)
