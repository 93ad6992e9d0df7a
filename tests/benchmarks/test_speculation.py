"""The benchmark of guesses, on a tiny model."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import speculation
from tests.fixtures.benchmark_docs import documented_fields
from tests.fixtures.speculation import write_heads
from tests.fixtures.tiny_llama import write_tiny_llama


def test_the_last_line_is_json_of_every_case(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cases = {
        name: replace(speculation.CASES[name], max_tokens=(6, 4), prompt_tokens=8)
        for name in ("makespan", "templated")
    }
    monkeypatch.setattr(speculation, "CASES", cases)
    model = write_tiny_llama(tmp_path)
    assert speculation.main(["--model", str(model), "--rounds", "1", "--threads", "1"]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    found = json.loads(last)
    assert set(found) == {"makespan", "templated", "acceptance"}
    assert set(found["acceptance"]) == {"lookup", "grammar", "draft", "medusa"}
    assert found["acceptance"]["draft"] is None
    assert [line.split(":")[0] for line in lines] == ["makespan", "templated"]


def test_each_proposer_is_measured_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    case = replace(speculation.CASES["tail"], max_tokens=(30,), prompt_tokens=8)
    monkeypatch.setattr(speculation, "CASES", {"tail": case})
    folders = [tmp_path / name for name in ("model", "draft", "heads")]
    for folder in folders:
        folder.mkdir()
    model, draft = (write_tiny_llama(folder) for folder in folders[:2])
    given = write_heads(model, folders[2], [tuple(range(40))])
    command = ["--model", str(given), "--draft", str(draft), "--rounds", "1", "--threads", "1", "--apart"]
    assert speculation.main(command) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    names = ["tail", *(f"tail, {one} alone" for one in ("lookup", "medusa", "draft"))]
    assert [line.split(":")[0] for line in lines] == names
    for line, name in zip(lines[1:], ("lookup", "medusa", "draft"), strict=True):
        found = json.loads(line.partition(": ")[2])
        assert {one for one in speculation.PROPOSERS if found[one] is not None} <= {name, "grammar"}
    assert json.loads(last)["apart"].keys() == {"lookup", "medusa", "draft"}


def test_the_documentation_has_every_field() -> None:
    assert documented_fields("speculation") == {
        *speculation.CASES,
        "acceptance",
        "apart",
        "steps",
        "step_time",
        "cpu_ratio",
        "rounds",
        "cpu_rounds",
    }


def test_the_ratio_is_that_of_the_middle_round() -> None:
    without, with_them = [(3.0, 2.0), (1.0, 1.0), (2.0, 2.0)], [(1.0, 1.0), (2.0, 4.0), (1.0, 1.0)]
    found = speculation._numbers(without, with_them, 0.5)
    assert (found["rounds"], found["cpu_rounds"]) == ([3.0, 0.5, 2.0], [2.0, 0.25, 2.0])
    assert (found["ratio"], found["cpu_ratio"], found["step_time"]) == (2.0, 2.0, 1.0)


def test_acceptance_is_by_proposer() -> None:
    counts = Counter(lookup_guessed_tokens=8, lookup_right_tokens=6)
    assert speculation.acceptance(counts) == {"lookup": 0.75, "grammar": None, "draft": None, "medusa": None}


def test_rounds_have_other_prompts() -> None:
    case, text = speculation.CASES["tail"], range(10_000)
    rounds = [speculation.prompts(case, text, 0, turn) for turn in range(5)]
    assert len({prompt for one in rounds for prompt in one}) == 20
    assert all(len(prompt) == case.prompt_tokens for one in rounds for prompt in one)
