"""`headrace calibrate`, with embeddings that need no engine."""

import csv
import json
import sys
from pathlib import Path

import pytest

from tests.fixtures.shell import Shell
from worker.settings import DEMO_MODEL
from worker.tuning import cache_threshold
from worker.tuning.cache_threshold import LabelledPair, choose, curve, wilson_low
from worker.up import ROOT

# The similarity is 1 less a hundredth for each letter of the last word: "x" 0.99, "xx" 0.98, ...
PAIRS = [
    ("sunny weather x", "fine weather", True),
    ("a rainy day xx", "a wet day", True),
    ("the answer is yes x", "the answer is no", False),  # other marks
    ("large dogs xxx", "large cats", False),
    ("cold soup xxxx", "chilled soup", True),
    ("too long none", "too long", True),
]


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Shell:
    monkeypatch.setattr(cache_threshold, "SIMILARITIES", "tests.fixtures.fake_similarities")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("HEADRACE_MODEL", str(DEMO_MODEL))
    monkeypatch.chdir(tmp_path)
    return Shell("http://127.0.0.1:9", monkeypatch)


def write(file: Path, *pairs: tuple[object, object, object]) -> str:
    file.write_text("".join(json.dumps({"a": a, "b": b, "same": same}) + "\n" for a, b, same in pairs))
    return str(file)


def test_the_threshold_is_found_and_the_curve_is_written(shell: Shell, tmp_path: Path) -> None:
    found = shell.json("calibrate", write(tmp_path / "pairs.jsonl", *PAIRS))
    assert found == {
        "threshold": 0.98,
        "precision": 1.0,
        "precision_low": 0.3424,
        "recall": 0.6667,
        "pairs": 5,
        "same": 3,
        "other_marks": 1,
    }
    assert "HEADRACE_CACHE_SIMILARITY=0.98" in (tmp_path / ".env").read_text()
    with (tmp_path / ".cache/calibration/calibration.csv").open() as lines:
        rows = list(csv.DictReader(lines))
    assert [(row["threshold"], row["precision"], row["precision_without_marks"]) for row in rows] == [
        ("0.99", "1.0", "0.5"),
        ("0.98", "1.0", "0.66667"),
        ("0.97", "0.66667", "0.5"),
        ("0.96", "0.75", "0.6"),
    ]
    pytest.importorskip("matplotlib", reason="the extra `tune` is not installed")
    assert (tmp_path / ".cache/calibration/calibration.png").stat().st_size > 1000


def test_without_matplotlib_it_says_what_to_install(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    done = shell.run("calibrate", write(tmp_path / "pairs.jsonl", *PAIRS))
    assert done.returncode == 0
    assert "calibration.png needs matplotlib: pip install 'headrace[tune]'" in done.stderr
    assert [one.name for one in (tmp_path / ".cache/calibration").iterdir()] == ["calibration.csv"]


def test_more_false_hits_allow_more_right_ones(shell: Shell, tmp_path: Path) -> None:
    file = write(tmp_path / "pairs.jsonl", *PAIRS)
    done = shell.run("calibrate", file, "--min-precision", "0.7")
    assert (done.returncode, "0.9600" in done.stdout, "recall" in done.stdout) == (0, True, True)
    assert "HEADRACE_CACHE_SIMILARITY=0.96" in (tmp_path / ".env").read_text()


def test_without_a_threshold_nothing_is_set(shell: Shell, tmp_path: Path) -> None:
    file = write(tmp_path / "pairs.jsonl", ("one dog x", "one cat", False), ("a xx", "b", True))
    done = shell.run("calibrate", file)
    assert (done.returncode, "No similarity has a precision of 0.99" in done.stderr) == (1, True)
    assert not (tmp_path / ".env").exists()


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{", "line 2: "),
        ('{"a": "x", "b": "y"}', "line 2: same: is required"),
        ('{"a": "x", "b": "y", "same": true, "c": 1}', "line 2: c: is not a known field"),
        ('{"a": "x", "b": "y", "same": true}', "needs pairs that are the same and pairs that are not"),
        (
            '{"a": "a broken", "b": "y", "same": false}',
            "could not be embedded: ConfigError: the model is broken",
        ),
    ],
)
def test_what_cannot_be_used_is_said(shell: Shell, tmp_path: Path, line: str, problem: str) -> None:
    file = tmp_path / "pairs.jsonl"
    file.write_text(f'{{"a": [{{"role": "user", "content": "x"}}], "b": "y", "same": true}}\n{line}\n')
    done = shell.run("calibrate", str(file))
    assert (done.returncode, problem in done.stderr) == (1, True), done.stderr


def test_pairs_of_one_similarity_are_hits_together() -> None:
    pairs = [LabelledPair(0.9, is_same=same, has_same_marks=True) for same in (True, False)]
    (only,) = curve(pairs)
    assert (only.precision, only.recall, only.num_hits) == (0.5, 1.0, 2)
    assert choose([only], min_precision=0.6) is None


def test_the_interval_is_wilsons() -> None:
    assert wilson_low(81, 263) == pytest.approx(0.2553, abs=1e-4)  # Newcombe 1998, table I
    assert wilson_low(0, 10) == 0
