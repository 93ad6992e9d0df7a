"""`headrace tune`, with trials that need no engine, and the files that it reads and writes."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from api.cli.tuning import DEMO_WORKLOAD
from api.cli.workload import WorkloadError, read_workload
from api.inputs.checkpoint import Checkpoint
from tests.fixtures.batches import submit
from tests.fixtures.shell import Shell
from worker.quality.expected import Expected, Match
from worker.settings import DEMO_MODEL
from worker.store.batches import samples
from worker.store.batches.samples import ReuseNotAllowedError
from worker.store.database.session import Store
from worker.store.requests.requests import NewRequest
from worker.store.tenants import tenants
from worker.tuning import trial_process
from worker.up import ROOT
from worker.values.requests import EmbeddingParams, Pooling
from worker.values.sampling import SamplingParams


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
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.chdir(tmp_path)  # .env is read there
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


def test_without_matplotlib_the_search_says_what_to_install(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("optuna", reason="the extra `tune` is not installed")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    work = tmp_path / "work.jsonl"
    work.write_text('{"prompt": "b"}\n' * 8)
    done = shell.run("tune", "--workload", str(work), "--trials", "1", "--out", str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    assert "pareto.png needs matplotlib: pip install 'headrace[tune]'" in done.stderr


def test_without_optuna_the_search_says_what_to_install(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    monkeypatch.delitem(sys.modules, "worker.tuning.study", raising=False)
    done = shell.run("tune", "--trials", "1")
    assert done.returncode == 1
    assert "Tuning needs Optuna: pip install 'headrace[tune]'" in done.stderr


def test_the_settings_in_env_are_the_present_ones(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("optuna", reason="the extra `tune` is not installed")
    monkeypatch.setenv("HEADRACE_MAX_NUM_SEQUENCES", "")  # so that what .env sets is taken back
    (tmp_path / ".env").write_text("HEADRACE_MAX_NUM_SEQUENCES=2\nHEADRACE_DTYPE=int8\n")
    work = tmp_path / "work.jsonl"
    work.write_text('{"prompt": "a"}\n' * 8)
    found = shell.json("tune", "--workload", str(work), "--trials", "1", "--out", str(tmp_path))
    assert found["before_tok_s"] == 200.0  # of two Sequences, and f32: a variable that is set goes first


def test_present_settings_that_nothing_beats_are_not_compared_with_themselves(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("optuna", reason="the extra `tune` is not installed")
    for name in ("DTYPE", "MAX_NUM_SEQUENCES", "MAX_TOKENS_PER_STEP", "THREADS"):
        monkeypatch.setenv(f"HEADRACE_{name}", "")  # so that what .env sets is taken back
    work = tmp_path / "work.jsonl"
    work.write_text(
        "".join(f'{{"prompt": "c{i}", "max_tokens": 3, "expected": "right"}}\n' for i in range(99))
    )
    options = ["--workload", str(work), "--trials", "3", "--max-quality-loss", "0.5", "--out", str(tmp_path)]
    first = shell.json("tune", *options)
    monkeypatch.setenv("TRIALS_FILE", str(tmp_path / "trials"))
    again = shell.json("tune", *options)
    assert (first["gain"], again["gain"], again["trials"]) == (2.0, 1.0, 3)
    assert (tmp_path / "trials").read_text().split() == ["f32", "int8"]  # the exact settings, and these


@pytest.fixture
def stored(store: Store, checkpoint: Checkpoint) -> Store:
    """What tenant acme has stored: three generations to tune by, and what no trial can run."""
    own = SamplingParams(max_tokens=9, temperature=0.5)
    requests = [
        NewRequest("shared", max_tokens=5, expected=Expected(Match.EXACT, "x")),
        NewRequest("own", max_tokens=4, params=own, add_special_tokens=False),
        NewRequest("", max_tokens=3, inputs=((1, 2),)),
        NewRequest("", max_tokens=3, inputs=("two", "prompts")),
        NewRequest("vector", max_tokens=1, params=EmbeddingParams(Pooling.MEAN)),
    ]
    new = {"params": SamplingParams(temperature=0), "model": checkpoint.model}
    submit(store.of_tenant("acme"), requests=requests, **new)
    other = replace(checkpoint.model, tokenizer="another")
    submit(store.of_tenant("acme"), model=other)
    submit(store.of_tenant("umbrella"), model=checkpoint.model)
    return store.of_tenant("acme")


def allow(store: Store, tenant_id: str = "acme") -> None:
    with store.transaction() as session:
        tenants.create(session, tenant_id)
        tenants.change(session, tenant_id, {"allows_reuse": True})


def test_a_sample_is_drawn_from_what_its_tenant_has_stored(stored: Store, checkpoint: Checkpoint) -> None:
    allow(stored)
    with stored.transaction() as session:
        found = samples.draw(session, tokenizer=checkpoint.model.tokenizer, most=10)
        few = samples.draw(session, tokenizer=checkpoint.model.tokenizer, most=2)
    assert few == found[:2]
    by_prompt = {one.prompts[0]: one for one in found}
    assert by_prompt.keys() == {"shared", "own", (1, 2)}
    shared, own = by_prompt["shared"], by_prompt["own"]
    assert (shared.params, shared.max_tokens) == (SamplingParams(temperature=0), 5)
    assert shared.expected == Expected(Match.EXACT, "x")
    assert (own.params.temperature, own.max_tokens, own.add_special_tokens) == (0.5, 4, False)


def test_nothing_is_drawn_without_its_tenants_leave(stored: Store, checkpoint: Checkpoint) -> None:
    allow(stored, "umbrella")
    with stored.transaction() as session, pytest.raises(ReuseNotAllowedError):
        samples.draw(session, tokenizer=checkpoint.model.tokenizer, most=10)


def test_a_tenants_backlog_is_a_workload(shell: Shell, stored: Store, tmp_path: Path) -> None:
    given = ["--target-latency-ms", "90000", "--env-file", str(tmp_path / "best.env")]
    given += ["--workload", "tenant:acme:2"]
    refused = shell.run("tune", *given)
    assert (refused.returncode, "headrace tenants set acme --reuse" in refused.stderr) == (1, True)
    allow(stored)
    assert shell.json("tune", *given)["final_quality"] == 1.0
