"""The decoder that is trained is the one that the Engine runs."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.fixtures.generation import greedy, make_engine, requests_for, run
from tests.fixtures.tiny_llama import edit_config, load_reference, write_tiny_llama
from worker.engine.prune.pruning import Importance, prune
from worker.engine.requests.errors import MissingTensorError, UnsupportedModelError
from worker.engine.training.decoder import TrainableDecoder

IDS = torch.arange(60).view(2, 30) % 37 + 5
GEMMA = {"num_hidden_layers": 3, "head_dim": 16, "query_pre_attn_scalar": 24, "sliding_window": 8}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"num_hidden_layers": 3, "attention_bias": True, "mlp_bias": True},
    "mistral": {"config_class": "MistralConfig", "num_hidden_layers": 3, "sliding_window": 8},
    "qwen2": {"config_class": "Qwen2Config", "num_hidden_layers": 3},
    "qwen3": {"config_class": "Qwen3Config", "num_hidden_layers": 3, "head_dim": 16},
    "gemma3": GEMMA
    | {
        "config_class": "Gemma3TextConfig",
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
        "tie_word_embeddings": True,
    },
}


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


@pytest.fixture(params=FAMILIES)
def checkpoint(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A checkpoint of a family that can be trained."""
    return write_tiny_llama(tmp_path / "source", **FAMILIES[request.param])


def test_logits_of_every_family_are_those_of_the_checkpoint(checkpoint: Path) -> None:
    model = TrainableDecoder.load(checkpoint)
    found = model.hidden(IDS) @ model.head.T
    with torch.inference_mode():
        torch.testing.assert_close(found, load_reference(checkpoint)(IDS).logits, atol=3e-4, rtol=1e-4)


def test_the_engine_runs_what_it_saves(checkpoint: Path, tmp_path: Path) -> None:
    TrainableDecoder.load(checkpoint).save(tmp_path / "copy", checkpoint, torch.float32)
    requests = requests_for([(5, 6, 7), (9, 8) * 10], greedy(12))
    one, other = (
        [done.token_ids for done in run(make_engine(directory), requests)]
        for directory in (checkpoint, tmp_path / "copy")
    )
    assert one == other


def test_what_is_pruned_is_saved_as_it_is(checkpoint: Path, tmp_path: Path) -> None:
    model = TrainableDecoder.load(checkpoint)
    pruned = prune(model, Importance(torch.tensor([1.0, 0.0, 2.0]), *importance_of(model)), 2, 40, 64)
    assert pruned.config.windows == (model.config.windows[0], model.config.windows[2])
    pruned.save(tmp_path / "pruned", checkpoint, torch.float32)
    again = TrainableDecoder.load(tmp_path / "pruned")
    assert again.config == pruned.config
    with torch.inference_mode():
        expected = load_reference(tmp_path / "pruned")(IDS).logits
    torch.testing.assert_close(pruned.hidden(IDS) @ pruned.head.T, expected, atol=3e-4, rtol=1e-4)


def test_windows_by_a_pattern_are_saved_layer_by_layer(tmp_path: Path) -> None:
    directory = write_tiny_llama(tmp_path / "source", **FAMILIES["gemma3"])
    edit_config(directory, layer_types=None, sliding_window_pattern=3)
    model = TrainableDecoder.load(directory)
    pruned = prune(model, Importance(torch.tensor([0.0, 0.0, 1.0]), *importance_of(model)), 1, 48, 96)
    pruned.save(tmp_path / "pruned", directory)
    assert pruned.config.windows == (None,)
    assert TrainableDecoder.load(tmp_path / "pruned").config == pruned.config


def importance_of(model: TrainableDecoder) -> tuple[torch.Tensor, list[torch.Tensor]]:
    generator = torch.Generator().manual_seed(3)
    config = model.config
    inner = [torch.rand(config.intermediate_size, generator=generator) for _ in range(config.num_layers)]
    return torch.rand(config.hidden_size, generator=generator), inner


def test_all_weights_of_every_family_learn(checkpoint: Path) -> None:
    model = TrainableDecoder.load(checkpoint)
    for tensor in model.weights.values():
        tensor.requires_grad_()
    (model.hidden(IDS) @ model.head.T).logsumexp(-1).sum().backward()
    still = [name for name, tensor in model.weights.items() if tensor.grad is None or not tensor.grad.any()]
    assert not still


def test_what_cannot_be_trained_is_refused(tmp_path: Path) -> None:
    directory = write_tiny_llama(tmp_path / "llama")
    edit_config(directory, num_hidden_layers=3)
    with pytest.raises(MissingTensorError, match=r"layers\.2"):
        TrainableDecoder.load(directory)
    edit_config(directory, quantization_config={"quant_method": "awq"})
    with pytest.raises(UnsupportedModelError, match="quantized weights cannot be trained"):
        TrainableDecoder.load(directory)
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    for config_class, what, more in (
        ("Gemma2Config", "soft caps", {}),
        ("Phi3Config", "fused weights", {"pad_token_id": 0}),
        ("Qwen3MoeConfig", "a mixture of experts", experts),
    ):
        directory = write_tiny_llama(tmp_path / config_class, config_class=config_class, **more)
        with pytest.raises(UnsupportedModelError, match=f"a model with {what} cannot be trained"):
            TrainableDecoder.load(directory)
