"""A draft learns from its teacher, and a run that was stopped ends as one that was not."""

import importlib.util
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.fixtures.generation import greedy, make_engine, requests_for, run
from tests.fixtures.tiny_llama import END, TEXT, tiny_tokenizer, write_tiny_llama
from worker.engine.distill.__main__ import main as distill
from worker.engine.distill.distillation import Distillation
from worker.engine.prune.__main__ import main as prune
from worker.engine.training.decoder import TrainableDecoder
from worker.engine.training.run import Recipe
from worker.engine.training.scores import score
from worker.engine.training.text import TrainingText, read_text

RECIPE = Recipe(steps=60, num_rows=4, length=24, learning_rate=3e-3, seed=1)


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("teacher"), initializer_range=0.1)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("text") / "text.txt"
    file.write_text(TEXT * 40, encoding="utf-8")
    return file


def start(teacher: Path, text: Path, recipe: Recipe = RECIPE) -> Distillation:
    draft = TrainableDecoder.load(teacher)
    generator = torch.Generator().manual_seed(9)
    for name, tensor in draft.weights.items():
        if "norm" not in name:
            tensor.normal_(std=0.1, generator=generator)
    found = read_text([text], teacher, recipe.length)
    return Distillation(recipe, TrainableDecoder.load(teacher), draft, found)


def test_a_draft_comes_near_its_teacher(teacher: Path, text: Path, tmp_path: Path) -> None:
    made = start(teacher, text)
    tests = made.text.tests(RECIPE.length)
    before = score(made.teacher, made.draft, tests)
    losses: list[float] = []
    made.run(tmp_path / "run.pt", 1e9, losses.append)
    after = score(made.teacher, made.draft, tests)
    assert losses[-1] < losses[0] / 2
    assert made.losses == losses
    assert made.acceptance[-1] == (RECIPE.steps, [after.acceptance])
    assert after.acceptance > before.acceptance + 0.04
    assert after.teacher_perplexity == before.teacher_perplexity


def test_each_line_of_a_jsonl_file_is_a_text(teacher: Path, tmp_path: Path) -> None:
    file = tmp_path / "texts.jsonl"
    lines = [json.dumps({"text": text}) for text in ("one\u2028two", "three", "four" * 20)]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    found = read_text([file], teacher, 4)
    ids = [*found.learned.tolist(), *found.held_out.tolist()]
    assert ids.count(END) == 3
    assert tiny_tokenizer().decode(ids) == "one\u2028twothree" + "four" * 20
    file.write_text('["text"]', encoding="utf-8")
    with pytest.raises(ValueError, match="line 1"):
        read_text([file], teacher, 4)


def test_a_stopped_run_ends_with_the_same_weights(teacher: Path, text: Path, tmp_path: Path) -> None:
    whole, stopped, later = (start(teacher, text, replace(RECIPE, steps=6)) for _ in range(3))
    whole.run(tmp_path / "whole.pt", 1e9, lambda _: None)
    for _ in range(3):
        stopped._take_step()
    stopped.save(tmp_path / "run.pt")
    later.load(tmp_path / "run.pt")
    assert later.step == 3
    later.run(tmp_path / "run.pt", 1e9, lambda _: None)
    assert all(torch.equal(later.draft.weights[name], one) for name, one in whole.draft.weights.items())
    with pytest.raises(ValueError, match="other options"):
        start(teacher, text).load(tmp_path / "run.pt")


def test_the_gradient_in_chunks_is_that_of_the_whole(
    teacher: Path, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = start(teacher, text), start(teacher, text)
    one._take_step()
    monkeypatch.setattr("worker.engine.distill.distillation.CHUNK", 7)
    other._take_step()
    for name, tensor in one.draft.weights.items():
        torch.testing.assert_close(other.draft.weights[name], tensor, atol=1e-5, rtol=1e-5)


def test_tests_are_not_learned_from() -> None:
    found = TrainingText(torch.arange(100), torch.arange(900, 930), begin=0)
    rows = torch.cat([found.rows(3, step, 8, 10) for step in range(50)])
    assert rows[:, 1:].max() < 100
    assert not rows[:, 0].any()
    assert torch.equal(found.rows(3, 7, 8, 10), rows[56:64])
    assert found.tests(10).shape == (3, 10)


def test_the_commands_make_a_draft_that_the_engine_speculates_with(
    teacher: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small, out = tmp_path / "small", tmp_path / "out"
    cut = ["--layers", "1", "--hidden", "32", "--intermediate", "64"]
    assert prune(["--model", str(teacher), "--out", str(small), "--text", str(text), *cut]) == 0
    pruned = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert pruned["parameters"] < pruned["of"]
    arguments = ["--teacher", str(teacher), "--draft", str(small), "--out", str(out), "--text", str(text)]
    arguments += ["--steps", "30", "--rows", "4", "--length", "24", "--learning-rate", "0.003"]
    assert distill(arguments) == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out.splitlines()[-1])
    assert found["after"]["acceptance"] >= found["before"]["acceptance"]
    assert found["after"]["teacher_perplexity"] == found["before"]["teacher_perplexity"]
    assert "30/30" in captured.err
    if importlib.util.find_spec("matplotlib"):
        assert (out / "training.png").read_bytes().startswith(b"\x89PNG")
    else:
        assert "training.png needs matplotlib" in captured.err
    engine = make_engine(teacher, speculates=True, draft_model=out)
    assert run(engine, requests_for([(5, 6, 7)], greedy(8)))[0].num_output_tokens == 8
    assert distill(arguments) == 2, "it would replace the draft"
    assert "already" in capsys.readouterr().err


def test_wrong_options_are_told(teacher: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    short = tmp_path / "short.txt"
    short.write_text("too short", encoding="utf-8")
    arguments = ["--teacher", str(teacher), "--draft", str(teacher), "--out", str(tmp_path / "out")]
    assert distill([*arguments, "--text", str(short)]) == 2
    assert "length must be" in capsys.readouterr().err, "256 tokens are too many for this model"
    assert distill([*arguments, "--text", str(short), "--length", "24"]) == 2
    assert "at least" in capsys.readouterr().err
