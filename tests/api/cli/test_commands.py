"""`headrace` against a real API over HTTP, and a real database."""

import gzip
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import text

from api.cli.connection import Connection
from tests.fixtures.batches import claim, held, run_to_the_end
from tests.fixtures.deployment import eventually, free_port
from tests.fixtures.shell import Shell, openai_line
from worker.settings import Settings
from worker.store.database.session import Store
from worker.store.shards import control


def test_from_a_first_key_to_results(shell: Shell, store: Store, tmp_path: Path) -> None:
    made = shell.run("keys", "create")
    key = made.stdout.strip()
    assert (made.returncode, key.startswith("hr_")) == (0, True)
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"custom_id": "a", "prompt": "one"}\n\n"two"\n{"prompt": "three", "max_tokens": 3}\n')
    submitted = shell.run("submit", str(prompts), "--max-tokens", "5", "--set", "seed=1", key=key)
    batch_id = submitted.stdout.strip()
    assert batch_id.startswith("batch_"), submitted.stderr
    assert shell.json("status", batch_id, key=key)["counts"]["total"] == 3
    shown = shell.run("status", batch_id, key=key).stdout
    assert "pending" in shown
    for shard_id in (1, 2):
        run_to_the_end(store, held(store, shard_id))
    watched = shell.run("status", batch_id, "--watch", "--json", key=key)
    assert json.loads(watched.stdout)["status"] == "completed"
    assert "3/3 requests" in watched.stderr
    out = tmp_path / "out.jsonl"
    assert shell.run("results", batch_id, "--follow", "-o", str(out), key=key).returncode == 0
    assert [json.loads(line)["output"] for line in out.read_text().splitlines()] == [
        "out one",
        "out two",
        "out three",
    ]
    assert len(shell.run("results", batch_id, "--after", "2", key=key).stdout.splitlines()) == 1


def test_text_from_standard_input_and_cancel(shell: Shell) -> None:
    key = shell.json("keys", "create", "ci", "--tenant", "acme")["key"]
    submitted = shell.run("submit", "-", "--json", key=key, given="one\n\ntwo\n")
    accepted = json.loads(submitted.stdout)
    assert accepted["requests"] == 2
    assert shell.json("cancel", accepted["batch_id"], key=key)["status"] == "cancelled"


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz"])
def test_a_file_of_openais_is_uploaded_watched_and_read(
    shell: Shell, store: Store, config: Settings, tmp_path: Path, suffix: str
) -> None:
    key = shell.json("keys", "create")["key"]
    given = tmp_path / f"many{suffix}"
    content = "".join(openai_line(f"row-{i}", model=config.model.name) for i in range(3)).encode()
    given.write_bytes(gzip.compress(content) if suffix.endswith(".gz") else content)
    submitted = shell.run("submit", str(given), "--set", "max_failed=2", key=key)
    batch_id = submitted.stdout.strip()
    assert batch_id.startswith("batch_"), submitted.stderr

    def run_shard(shard_id: int) -> None:
        run_to_the_end(store, eventually(lambda: claim(store, shard_id), what="a shard"))

    with ThreadPoolExecutor(1) as pool:
        running = [pool.submit(run_shard, shard_id) for shard_id in (1, 2)]
        watched = shell.run("status", batch_id, "--watch", "--json", key=key)
        for one in running:
            one.result(60)
    assert json.loads(watched.stdout)["counts"]["completed"] == 3
    plain = shell.run("results", batch_id, key=key).stdout.splitlines()
    assert [json.loads(one)["custom_id"] for one in plain] == ["row-0", "row-1", "row-2"]
    lines = shell.run("results", batch_id, "--openai", key=key).stdout.splitlines()
    assert [json.loads(one)["response"]["body"]["choices"][0]["text"] for one in lines] == [
        f"out row-{i}" for i in range(3)
    ]
    assert "neither" in shell.run("results", batch_id, "--openai", "--follow", key=key).stderr


@pytest.mark.usefixtures("files")
def test_submit_and_watch_ends_with_the_files(shell: Shell, store: Store, config: Settings) -> None:
    key = shell.json("keys", "create")["key"]
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(
            lambda: run_to_the_end(store, eventually(lambda: claim(store, 1), what="a shard"))
        )
        given = openai_line("only", model=config.model.name)
        done = shell.run("submit", "-", "--watch", "--json", key=key, given=given)
        running.result(60)
    ended = json.loads(done.stdout)
    assert (done.returncode, ended["status"], ended["error_file_id"]) == (0, "completed", None)
    assert ended["output_file_id"].startswith("file-")


def test_every_wrong_line_of_a_file_is_named(shell: Shell, config: Settings) -> None:
    key = shell.json("keys", "create")["key"]
    name = config.model.name
    bad = openai_line("b", model=name, top_p=7) + openai_line("c", model=name, n=0)
    done = shell.run("submit", "-", key=key, given=openai_line("a", model=name) + bad)
    assert (done.returncode, done.stdout) == (1, "")
    first, second = done.stderr.splitlines()
    assert first.startswith("line 2: body.top_p: ")
    assert second.startswith("line 3: body.n: ")


@pytest.mark.usefixtures("files")
def test_every_line_that_a_batch_cannot_run_is_named(shell: Shell, config: Settings) -> None:
    key = shell.json("keys", "create")["key"]
    api = Connection(shell.url, key)
    lines = openai_line("a", model=config.model.name) + openai_line("b", model=config.model.name)
    files = {"file": ("requests.jsonl", lines.encode())}
    uploaded = api.call("POST", "/v1/files", data={"purpose": "batch"}, files=files)
    asked = {"input_file_id": uploaded["id"], "endpoint": "/v1/embeddings", "completion_window": "24h"}
    batch = api.call("POST", "/v1/batches", json=asked)
    shown = shell.run("status", batch["id"], "--watch", key=key).stdout.splitlines()
    problem = "url: must be the batch's endpoint /v1/embeddings, but is /v1/completions"
    assert shown[-2:] == [f"line 1: {problem}", f"line 2: {problem}"]
    assert shell.run("status", batch["id"], key=key).stdout.splitlines()[-2:] == shown[-2:]


def test_a_batch_that_is_too_large_for_a_body_is_told_the_way(shell: Shell, tmp_path: Path) -> None:
    key = shell.json("keys", "create")["key"]
    large = tmp_path / "large.txt"
    large.write_text("a line of some length\n" * 50_000)
    done = shell.run("submit", str(large), key=key)
    assert (done.returncode, "uploads files in OpenAI's batch format" in done.stderr) == (1, True)


def test_a_batch_is_paused_and_resumed(shell: Shell) -> None:
    key = shell.json("keys", "create")["key"]
    batch_id = shell.run("submit", "-", key=key, given="one\n").stdout.strip()
    assert shell.json("pause", batch_id, key=key)["waiting"]["reason"] == "paused"
    assert shell.json("resume", batch_id, key=key)["paused"] is False


@pytest.mark.parametrize(
    ("arguments", "given", "said"),
    [
        (("status", "batch_none"), "", "no batch batch_none"),
        (("submit", "-"), "", "- has no prompts"),
        (("submit", "-"), '{"prompt": "a"}\n{broken\n', "line 2: this is not JSON"),
        (("submit", "-"), '{"prompt": "a"}\n\n{"prompt": "b", "top_p": 7}\n', "-.jsonl, line 3: top_p: must"),
        (("submit", "-"), '{"prompt": "a"}\n{"prompt": ""}\n', "-.jsonl, line 2: prompt: must not be empty"),
        (
            ("submit", "-"),
            '{"custom_id":"a","method":"POST","url":"/v1/x","body":{}}',
            "line 1: url: must be one of",
        ),
        (
            ("estimate", "-"),
            '\n{"custom_id":"a","method":"POST","url":"/v1/x","body":{}}',
            "-.jsonl, line 2: url: must be",
        ),
        (
            ("submit", "-", "--max-tokens", "3"),
            '{"custom_id":"a","method":"POST","url":"/v1/x","body":{}}',
            "--max-tokens: leave it out",
        ),
        (("submit", "-", "--set", "seed"), "one\n", "NAME=JSON"),
        (("submit", "-", "--set", "top_p=7"), "one\n", "top_p: "),
        (("keys", "revoke", "hr_none"), "", "the scope `admin` or `deployment`"),
        (("keys", "create", "--tenant", "Not A Name"), "", "is not a tenant's name"),
        (("tenants", "set", "acme", "--max-batches", "-3"), "", "write a number above 0, or none"),
        (("tenants", "set", "acme"), "", "There is nothing to change"),
        (("tenants", "set", "", "--weight", "3"), "", "is not a tenant's name"),
    ],
)
def test_what_goes_wrong_is_one_sentence(
    shell: Shell, arguments: tuple[str, ...], given: str, said: str
) -> None:
    key = shell.json("keys", "create")["key"]
    done = shell.run(*arguments, key=key, given=given)
    assert (done.returncode, done.stdout) == (1, "")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1, done.stderr


def test_without_a_key_or_an_api_the_way_is_told(shell: Shell) -> None:
    refused = shell.run("status", "batch_none")
    assert (refused.returncode, "headrace keys create" in refused.stderr) == (1, True)
    away = shell.run("--url", f"http://127.0.0.1:{free_port()}", "models")
    assert (away.returncode, "does not answer" in away.stderr) == (1, True)


def test_keys_and_tenants_are_administered_and_audited(shell: Shell) -> None:
    first = shell.json("keys", "create", "ci", "--tenant", "acme", "--scope", "read", "--expires", "90d")
    rotated = shell.json("keys", "rotate", first["prefix"], "--keep", "1h")
    shell.json("keys", "revoke", first["prefix"])
    changed = shell.json("tenants", "set", "acme", "--weight", "3", "--max-batches", "5")
    assert [(t["weight"], t["max_batches"], t["max_bytes"]) for t in changed] == [(3, 5, None)]
    assert shell.json("tenants", "set", "acme", "--max-batches", "none")[0]["max_batches"] is None
    assert shell.json("tenants", "set", "acme", "--semantic-cache")[0]["may_use_semantic_cache"] is True
    assert shell.json("tenants", "set", "acme", "--reuse")[0]["allows_reuse"] is True
    assert "yes" in shell.run("tenants", "list").stdout
    listed = {key["prefix"]: key for key in shell.json("keys", "list", "--tenant", "acme")}
    assert (listed[first["prefix"]]["revoked_at"] is None, listed[rotated["prefix"]]["scopes"]) == (
        False,
        ["read"],
    )
    acts = [(entry["act"], entry["target"]) for entry in shell.json("audit")]
    assert acts == [
        ("tenant.set", "acme"),
        ("tenant.set", "acme"),
        ("tenant.set", "acme"),
        ("tenant.set", "acme"),
        ("key.revoke", first["prefix"]),
        ("key.rotate", first["prefix"]),
        ("key.create", first["prefix"]),
        ("tenant.create", "acme"),
    ]
    for said in (shell.run("audit").stdout, shell.run("keys", "list").stdout):
        assert first["prefix"] in said
        assert first["key"] not in said
        assert rotated["key"] not in said


@pytest.mark.parametrize(
    "kind", ["bash", *(pytest.param(one, marks=pytest.mark.slow) for one in ("zsh", "fish"))]
)
def test_shells_complete_commands(kind: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from api.cli.main import app; app(prog_name='headrace')"],
        env=os.environ
        | {"_HEADRACE_COMPLETE": f"complete_{kind}", "COMP_WORDS": "headrace ca", "COMP_CWORD": "1"}
        | {"_TYPER_COMPLETE_ARGS": "headrace ca", "_TYPER_COMPLETE_FISH_ACTION": "get-args"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "cancel" in done.stdout
    assert "submit" not in done.stdout


def test_results_of_a_batch_that_is_deleted_end_with_why(shell: Shell, store: Store, tmp_path: Path) -> None:
    key = shell.run("keys", "create").stdout.strip()
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('"one"\n"two"\n"three"\n')
    batch_id = shell.run("submit", str(prompts), key=key).stdout.strip()
    run_to_the_end(store, held(store, 1))
    out = tmp_path / "out.jsonl"
    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(shell.run, "results", batch_id, "--follow", "-o", str(out), key=key)
        eventually(lambda: out.exists() and out.read_text().count("\n") == 2, what="two results")
        with store.transaction() as session:
            session.execute(text("UPDATE batches SET status = 'cancelled', finished_at = now()"))
            control.remove(session, batch_id)
        done = following.result(60)
    assert done.returncode == 1
    assert f"no batch {batch_id}" in done.stderr
    assert out.read_text().count("\n") == 2


def test_text_to_train_on_is_given_only_of_a_tenant_that_allows_it(shell: Shell, store: Store) -> None:
    keys = {name: shell.json("keys", "create", "ci", "--tenant", name)["key"] for name in ("acme", "other")}
    batches = {
        name: shell.run("submit", "-", key=key, given="one\n\ntwo ☃\n").stdout.strip()
        for name, key in keys.items()
    }
    for shard_id in (1, 2):
        run_to_the_end(store, held(store, shard_id))
    refused = shell.run("training-text", batches["acme"])
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "acme does not allow" in refused.stderr
    shell.json("tenants", "set", "acme", "--reuse")
    printed = shell.run("training-text", batches["acme"]).stdout.splitlines()
    assert [json.loads(line) for line in printed] == [{"text": "oneout one"}, {"text": "two ☃out two ☃"}]
    for name, why in ((batches["other"], "several tenants"), ("batch_none", "no batch batch_none")):
        both = shell.run("training-text", batches["acme"], name)
        assert (both.returncode, both.stdout, why in both.stderr) == (1, "", True)
    assert shell.json("audit")[0]["act"] == "training.export"
