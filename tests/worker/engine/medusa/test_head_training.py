"""Heads learn what their model says a few tokens later."""

import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from tests.fixtures.generation import greedy, make_engine, requests_for, run
from tests.fixtures.tiny_llama import TEXT, write_tiny_llama
from worker.engine.medusa.__main__ import main as train
from worker.engine.medusa.head_training import FARTHER, HeadTraining, acceptance
from worker.engine.models.medusa_heads import MedusaHeads
from worker.engine.training.decoder import EMBEDDING, TrainableDecoder
from worker.engine.training.run import Recipe
from worker.engine.training.text import read_text
from worker.values.model_files import HEADS_FILE

RECIPE = Recipe(steps=60, num_rows=4, length=24, learning_rate=3e-2, seed=1)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """What is this small takes longer on several."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("model"), initializer_range=0.1)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("text") / "text.txt"
    file.write_text(TEXT * 40, encoding="utf-8")
    return file


def start(model: Path, text: Path, *, spread: float = 0.0) -> HeadTraining:
    generator = torch.Generator().manual_seed(1)
    weights, biases = (spread * torch.randn(shape, generator=generator) for shape in ((3, 48, 96), (3, 48)))
    found = read_text([text], model, RECIPE.length)
    return HeadTraining(RECIPE, TrainableDecoder.load(model), MedusaHeads(weights, biases), found)


def test_heads_come_near_their_model(model: Path, text: Path, tmp_path: Path) -> None:
    made = start(model, text)
    rows = made.text.rows(7, 0, 16, RECIPE.length)
    before = acceptance(made.model, made.heads, rows)
    losses: list[float] = []
    made.run(tmp_path / "run.pt", 1e9, losses.append)
    assert losses[-1] < 0.8 * losses[0]
    after = acceptance(made.model, made.heads, rows)
    assert all(one > other + 0.05 for one, other in zip(after, before, strict=True))
    assert made.acceptance[-1] == (RECIPE.steps, made.test())


def test_a_head_learns_from_its_own_place(model: Path, text: Path) -> None:
    """The gradients are those of divergences, each head's from the model's choice so many places later."""
    made = start(model, text, spread=0.1)
    rows = made.text.rows(1, 0, 2, RECIPE.length)
    loss = made.learn(rows)
    gradients = [made.heads.weights.grad, made.heads.biases.grad]
    made.heads.weights.grad = made.heads.biases.grad = None
    hidden = made.model.hidden(rows).detach()
    aim = (hidden @ made.model.head.T).log_softmax(-1)
    expected = torch.zeros(())
    newest = F.rms_norm(made.model.weights[EMBEDDING][rows[:, 1:]], (48,))
    for head in range(3):
        read = torch.cat((hidden[:, :-1], newest), dim=-1)
        inner = read @ made.heads.weights[head].T + made.heads.biases[head]
        found = ((hidden[:, :-1] + F.silu(inner)) @ made.model.head.T).log_softmax(-1)
        for row in range(2):
            for place in range(RECIPE.length - head - 1):
                wanted = aim[row, place + head + 1]
                divergence = (wanted.exp() * (wanted - found[row, place])).sum()
                expected = expected + FARTHER**head * divergence / (2 * (RECIPE.length - head - 1))
    expected.backward()  # type: ignore[no-untyped-call]
    assert loss == pytest.approx(expected.item(), rel=1e-4)
    for gradient, tensor in zip(gradients, (made.heads.weights, made.heads.biases), strict=True):
        torch.testing.assert_close(gradient, tensor.grad, atol=1e-6, rtol=1e-4)


def test_the_command_makes_heads_that_the_engine_speculates_with(
    model: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    arguments = [str(model), "--out", str(out), "--text", str(text), "--heads", "2"]
    arguments += [
        "--steps",
        "30",
        "--rows",
        "4",
        "--length",
        "24",
        "--learning-rate",
        "0.03",
        "--threads",
        "1",
    ]
    assert train(arguments) == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out.splitlines()[-1])
    assert found["parameters"] == 2 * (48 * 96 + 48)
    assert len(found["after"]) == 2
    assert sum(found["after"]) > sum(found["before"])
    assert "30/30" in captured.err
    if importlib.util.find_spec("matplotlib"):
        assert (out / "training.png").read_bytes().startswith(b"\x89PNG")
    for file in model.iterdir():
        (out / file.name).symlink_to(file)
    engine = make_engine(out, speculates=True)
    assert engine._runner.medusa is not None
    assert run(engine, requests_for([(5, 6, 7)], greedy(8)))[0].num_output_tokens == 8
    assert train(arguments) == 2, "it would replace the heads"
    assert HEADS_FILE in capsys.readouterr().err


def test_wrong_options_are_told(
    model: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [str(model), "--out", str(tmp_path / "out"), "--text", str(text)]
    assert train([*arguments, "--length", "5"]) == 2
    assert "length must be from 6" in capsys.readouterr().err
    assert train([*arguments, "--heads", "0"]) == 2
    assert "heads" in capsys.readouterr().err
