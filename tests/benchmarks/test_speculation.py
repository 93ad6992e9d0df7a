"""The benchmark of guesses, on a tiny model."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import speculation
from tests.fixtures.benchmark_docs import documented_fields
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


def test_the_documentation_has_every_field() -> None:
    assert documented_fields("speculation") == {
        *speculation.CASES,
        "acceptance",
        "steps",
        "step_time",
        "cpu_ratio",
    }


def test_acceptance_is_by_proposer() -> None:
    counts = Counter(lookup_guessed_tokens=8, lookup_right_tokens=6)
    assert speculation.acceptance(counts) == {"lookup": 0.75, "grammar": None, "draft": None, "medusa": None}


def test_rounds_have_other_prompts() -> None:
    case, text = speculation.CASES["tail"], range(10_000)
    rounds = [speculation.prompts(case, text, 0, turn) for turn in range(5)]
    assert len({prompt for one in rounds for prompt in one}) == 20
    assert all(len(prompt) == case.prompt_tokens for one in rounds for prompt in one)
