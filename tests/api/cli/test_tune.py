"""`headrace tune`, with trials that need no engine, and the files that it reads and writes."""

import json
from pathlib import Path

import pytest

from api.cli.tuning import DEMO_WORKLOAD
from api.cli.workload import WorkloadError, read_workload
from api.inputs.checkpoint import Checkpoint
from tests.fixtures.shell import Shell
from worker.quality.expected import Expected, Match
from worker.settings import DEMO_MODEL
from worker.tuning import trial_process


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    return Checkpoint.load(DEMO_MODEL)


def test_lines_of_both_forms_become_requests(checkpoint: Checkpoint, tmp_path: Path) -> None:
    chat = {"model": "demo", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 7}
    lines = [
        {"prompt": "one", "max_tokens": 5, "temperature": 0, "expected": "two"},
        {"custom_id": "b", "method": "POST", "url": "/v1/chat/completions", "body": chat},
        {"messages": [{"role": "user", "content": "Hi"}], "expected": {"match": "number", "value": 3}},
    ]
    file = tmp_path / "work.jsonl"
    file.write_text("\n\n".join(map(json.dumps, lines)))
    requests, expected = read_workload(file, checkpoint, max_prompt_bytes=1 << 20)
    assert [one.params.max_tokens for one in requests] == [5, 7, 256]
    assert requests[0].prompt == "one"
    assert requests[1].prompt == requests[2].prompt != "Hi"  # the chat template's
    assert expected == {0: Expected(Match.EXACT, "two"), 2: Expected(Match.NUMBER, 3)}


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{", "line 2: .*JSON"),
        ("[]", "line 2: must be a JSON object"),
        ('{"prompt": "a", "max_tokenz": 3}', "line 2: max_tokenz: is not a known field"),
        ('{"prompt": "a", "kind": "embedding"}', "line 2: .*generations only"),
        ('{"prompt": "a", "expected": {"match": "guess", "value": 1}}', "line 2: expected: match: must be"),
    ],
)
def test_a_wrong_line_is_named(checkpoint: Checkpoint, tmp_path: Path, line: str, problem: str) -> None:
    file = tmp_path / "work.jsonl"
    file.write_text(f'{{"prompt": "fine"}}\n{line}\n')
    with pytest.raises(WorkloadError, match=problem):
        read_workload(file, checkpoint, max_prompt_bytes=1 << 20)


def test_the_demos_workload_is_read(checkpoint: Checkpoint) -> None:
    requests, expected = read_workload(DEMO_WORKLOAD, checkpoint, max_prompt_bytes=1 << 20)
    assert len(requests) == len(expected) >= 300


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, database_url: str) -> Shell:  # noqa: ARG001
    monkeypatch.setattr(trial_process, "TRIAL", "tests.fixtures.fake_trial")
    monkeypatch.setenv("HEADRACE_DTYPE", "f32")
    return Shell("http://127.0.0.1:9", monkeypatch)


def test_optimizing_to_a_latency_prints_exactly_what_it_should(shell: Shell, tmp_path: Path) -> None:
    env = tmp_path / "best.env"
    found = shell.json(
        "tune", "--target-latency-ms", "40", "--target-quality", "0.98", "--env-file", str(env)
    )
    assert found == {
        "optimizations": ["int8 quantization", "batching (64 sequences)"],
        "final_latency_ms": 10.0,
        "final_quality": 1.0,
    }
    assert {"HEADRACE_DTYPE=int8", "HEADRACE_MAX_NUM_SEQUENCES=64"} < set(env.read_text().splitlines())


def test_a_target_that_is_not_reached_is_the_status(shell: Shell, tmp_path: Path) -> None:
    done = shell.run("tune", "--target-latency-ms", "1", "--env-file", str(tmp_path / "env"))
    assert done.returncode == 1
    assert done.stderr.endswith("The target was not reached.\n")


def test_a_search_writes_its_front_and_its_winner(shell: Shell, tmp_path: Path) -> None:
    for name in ("optuna", "matplotlib"):
        pytest.importorskip(name, reason="the extra `tune` is not installed")
    work = tmp_path / "work.jsonl"
    work.write_text(
        "".join(
            json.dumps({"prompt": f"p{i}", "max_tokens": 3, "expected": "right"}) + "\n" for i in range(200)
        )
    )
    options = ["--workload", str(work), "--trials", "4", "--max-quality-loss", "0.1"]
    files = ["--env-file", str(tmp_path / "best.env"), "--out", str(tmp_path / "out")]
    done = shell.run("tune", *options, *files, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found.keys() == {"before_tok_s", "after_tok_s", "gain", "quality_loss", "interval", "trials"}
    assert (found["gain"], found["quality_loss"], found["trials"]) == (2.0, 0.005, 4)
    assert found["interval"][1] < 0.1
    assert "HEADRACE_DTYPE=int8" in (tmp_path / "best.env").read_text()
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["pareto.csv", "pareto.png"]
    assert len([line for line in done.stderr.splitlines() if "dtype=" in line]) == 4
    none = shell.run("tune", *options, "--max-latency-p95", "0.1", *files)
    assert (none.returncode, "None of 4 trials meets the constraints" in none.stderr) == (1, True)
