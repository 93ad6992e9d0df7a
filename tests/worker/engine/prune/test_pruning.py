"""What is cut out first is what changes nothing."""

from pathlib import Path

import pytest
import torch

from tests.fixtures.tiny_llama import write_tiny_llama
from worker.engine.prune.pruning import measure, prune
from worker.engine.training.decoder import TrainableDecoder

IDS = torch.arange(80).view(4, 20) * 7 % 301 + 2


@pytest.fixture
def model(tmp_path: Path) -> TrainableDecoder:
    return TrainableDecoder.load(write_tiny_llama(tmp_path, num_hidden_layers=4))


def test_a_layer_that_does_nothing_goes_first(model: TrainableDecoder) -> None:
    for part in ("self_attn.o_proj", "mlp.down_proj"):
        model.weights[f"model.layers.2.{part}.weight"].zero_()
    importance = measure(model, IDS)
    assert importance.layers.argmin() == 2
    pruned = prune(model, importance, 3, 48, 96)
    assert pruned.config.num_layers == 3
    assert torch.equal(pruned.hidden(IDS), model.hidden(IDS))


def test_inner_values_that_add_nothing_go_first_in_each_layer(model: TrainableDecoder) -> None:
    for layer in range(4):
        model.weights[f"model.layers.{layer}.mlp.down_proj.weight"][:, layer % 3 :: 3] = 0
    pruned = prune(model, measure(model, IDS), 4, 48, 64)
    assert pruned.weights["model.layers.1.mlp.up_proj.weight"].shape == (64, 48)
    torch.testing.assert_close(pruned.hidden(IDS), model.hidden(IDS), atol=1e-4, rtol=1e-4)


def test_hidden_values_that_are_never_large_go_first(model: TrainableDecoder) -> None:
    for name, tensor in model.weights.items():
        if name.endswith("norm.weight"):
            tensor[10:20] = 1e-6
    pruned = prune(model, measure(model, IDS), 4, 38, 96)
    kept = [*range(10), *range(20, 48)]
    assert torch.equal(pruned.head, model.head[:, kept])
    assert pruned.hidden(IDS).shape == (4, 20, 38)


def test_sizes_beyond_the_models_own_are_refused(model: TrainableDecoder) -> None:
    importance = measure(model, IDS)
    with pytest.raises(ValueError, match="layers must be from 1 to 4, not 5"):
        prune(model, importance, 5, 48, 96)
    with pytest.raises(ValueError, match="hidden must be from 1 to 48, not 0"):
        prune(model, importance, 4, 0, 96)
