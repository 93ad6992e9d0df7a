"""What people type about one batch: tables, estimates, output files, endings, and batch ids."""

import json
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from sqlalchemy import select

from api.cli.prompt_file import read_prompts
from tests.api.batches.test_models import seen
from tests.fixtures.batches import LEASE, held, result, run_to_the_end
from tests.fixtures.shell import Shell, openai_line
from worker.contract.models import Model, identify
from worker.settings import Settings
from worker.store.database.session import Store
from worker.store.rows.shards import ShardRow
from worker.store.shards import shards
from worker.store.shards.shards import Progress


@pytest.fixture
def key(shell: Shell) -> str:
    made = shell.json("keys", "create", "--scope", "read", "--scope", "submit", "--scope", "admin")
    return str(made["key"])


def submit(shell: Shell, key: str, given: str = "one\ntwo\nthree\n") -> str:
    done = shell.run("submit", "-", key=key, given=given)
    assert done.stdout.startswith("batch_"), done.stderr
    return done.stdout.strip()


def test_the_version_is_the_packages(shell: Shell) -> None:
    assert shell.run("--version").stdout == f"headrace {metadata.version('headrace')}\n"


def test_a_table_has_a_request_on_each_row(shell: Shell, key: str, tmp_path: Path) -> None:
    table = tmp_path / "rows.csv"
    table.write_text('custom_id,prompt,max_tokens\n007,"one,\nand more",5\n\n008,two,\n')
    done = shell.run("submit", str(table), "--json", key=key)
    assert json.loads(done.stdout)["requests"] == 2
    assert "skipped 1 blank line (line 4)" in done.stderr
    estimate = shell.json("estimate", str(table), "--max-tokens", "7", key=key)
    assert estimate["max_output_tokens"] == 5 + 7


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("text\none\n", "line 1: the header has no column `prompt`"),
        ("prompt,prompt\none,two\n", "line 1: the header names a column twice"),
        ("prompt,seed\none\n", "line 2: this row has 1 cells, and the header has 2"),
        ('prompt\n"one"two\n', "line 2: this is not CSV"),
        ("prompt,seed\none,1\n\ntwo,x\n", "line 4: seed: must be a whole number"),
        ("prompt,colour\none,red\n", "line 2: colour: "),
        ("prompt\n", "has no prompts"),
    ],
)
def test_a_wrong_row_of_a_table_is_named(
    shell: Shell, key: str, tmp_path: Path, content: str, said: str
) -> None:
    table = tmp_path / "rows.csv"
    table.write_text(content)
    done = shell.run("submit", str(table), key=key)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"{table}" in done.stderr
    assert said in done.stderr


def test_blank_lines_of_a_text_are_reported(shell: Shell, key: str) -> None:
    done = shell.run("submit", "-", key=key, given="one\n\ntwo\n  \n\n\n\n\n")
    assert done.stderr == "-: skipped 6 blank lines (lines 2, 4, 5, 6, 7, ...)\n"


def test_a_refused_request_of_a_text_is_named_by_its_line(shell: Shell, key: str, config: Settings) -> None:
    long = "x" * (config.max_prompt_bytes + 1)
    done = shell.run("submit", "-", key=key, given=f"one\n\n{long}\n")
    assert done.stderr.splitlines()[-1].startswith("-, line 3: the prompt ")


def test_the_lines_of_openais_format_are_estimated(shell: Shell, key: str, config: Settings) -> None:
    name = config.model.name
    lines = openai_line("a", model=name) + "\n" + openai_line("b", model=name, max_tokens=9)
    done = shell.run("estimate", "-", "--json", key=key, given=lines)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["requests"], found["input_tokens"], found["max_output_tokens"]) == (2, 2, 14)
    assert shell.json("list", key=key)["data"] == []
    wrong = shell.run("estimate", "-", key=key, given=lines + openai_line("c", model=name, top_p=7))
    assert wrong.stderr.startswith("-.jsonl, line 4: body.top_p: must be at most 1")


def test_a_bad_path_is_told_before_anything_is_read(
    shell: Shell, store: Store, key: str, tmp_path: Path
) -> None:
    batch_id = submit(shell, key)
    run_to_the_end(store, held(store, 1))
    for path, why in ((tmp_path, "it is a directory"), (tmp_path / "none" / "out", "there is no directory")):
        done = shell.run("results", batch_id, "--follow", "-o", str(path), key=key)
        assert (done.returncode, why in done.stderr) == (1, True), done.stderr
    old = tmp_path / "old.jsonl"
    old.write_text("precious\n")
    assert shell.run("results", "batch_none", "-o", str(old), key=key).returncode == 1
    assert old.read_text() == "precious\n"
    assert shell.run("results", batch_id, "-o", str(old), key=key).returncode == 0
    assert shell.run("results", batch_id, "--after", "1", "-o", str(old), key=key).returncode == 0
    assert [json.loads(line)["sequence"] for line in old.read_text().splitlines()] == [1, 2, 2]


def test_a_plain_batch_has_no_output_files(shell: Shell, key: str) -> None:
    batch_id = submit(shell, key)
    done = shell.run("results", batch_id, "--openai", key=key)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert f"Run `headrace results {batch_id}` without --openai." in done.stderr
    assert "batch_none" in shell.run("results", "batch_none", "--openai", key=key).stderr


def test_batches_are_listed_by_status_retried_and_deleted(shell: Shell, key: str) -> None:
    cancelled, pending = submit(shell, key), submit(shell, key)
    ended = shell.json("cancel", cancelled, key=key)
    assert ended["progress"] == 0
    for status, expected in (("cancelled", [cancelled]), ("pending", [pending]), ("completed", [])):
        found = shell.json("list", "--status", status, key=key)
        assert [one["batch_id"] for one in found["data"]] == expected
    assert "failed" in shell.run("retry", cancelled, key=key).stderr
    retried = shell.json("retry", cancelled, "--cancelled", key=key)
    assert (retried["requests"], retried["retry_of"]) == (3, cancelled)
    assert shell.json("delete", cancelled, key=key) == {"batch_id": cancelled, "deleted": True}
    assert shell.run("status", cancelled, key=key).returncode == 1
    refused = shell.run("delete", pending, key=key)
    assert (refused.returncode, "Cancel it first" in refused.stderr) == (1, True)


def test_a_batch_that_failed_without_a_failed_request_shows_why(shell: Shell, store: Store, key: str) -> None:
    shell.run("submit", "-", "--set", "max_total_tokens=1", key=key, given="one\ntwo\n")
    run_to_the_end(store, held(store, 1))
    (row,) = shell.run("list", "--status", "failed", key=key).stdout.splitlines()[1:]
    assert row.split()[1:5] == ["failed", "50%", "1/2", "max_total_tokens_reached"]


def test_a_batch_is_named_scheduled_and_found(shell: Shell, key: str) -> None:
    options = [
        "--name",
        "nightly run",
        "--metadata",
        "set=x=y",
        "--metadata",
        "run=1",
        "--start-after",
        "3600",
    ]
    batch_id = shell.run("submit", "-", *options, key=key, given="one\n").stdout.strip()
    submit(shell, key)
    shown = json.loads(shell.run("status", batch_id, "--json", key=key).stdout)
    assert (shown["name"], shown["metadata"]) == ("nightly run", {"set": "x=y", "run": "1"})
    assert shown["waiting"]["reason"] == "scheduled"
    found = shell.run("list", "--name", "nightly run", "--metadata", "run=1", key=key).stdout.splitlines()
    assert (len(found), found[0].split()[:2]) == (2, ["BATCH", "NAME"])
    assert "nightly run" in found[1]
    assert "NAME" not in shell.run("list", "--limit", "1", key=key).stdout
    assert "write KEY=VALUE" in shell.run("list", "--metadata", "run", key=key).stderr


@pytest.mark.parametrize("command", ["status", "submit"])
def test_ctrl_c_says_that_the_batch_goes_on(shell: Shell, key: str, command: str) -> None:
    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    shell.patch.setattr("api.cli.watch.time.sleep", interrupt)
    argument = submit(shell, key) if command == "status" else "-"
    done = shell.run(command, argument, "--watch", key=key, given="one\n")
    assert done.returncode == 130
    (batch,) = shell.json("list", "--limit", "1", key=key)["data"]
    assert batch["status"] == "pending"
    assert f"The batch goes on. `headrace status {batch['batch_id']} --watch`" in done.stderr


@pytest.mark.slow
def test_shells_complete_the_ids_of_batches(shell: Shell, key: str) -> None:
    first, second = submit(shell, key), submit(shell, key)

    def completed(word: str) -> str:
        return subprocess.run(
            [sys.executable, "-c", "from api.cli.main import app; app(prog_name='headrace')"],
            env={
                "HEADRACE_URL": shell.url,
                "HEADRACE_API_KEY": key,
                "_HEADRACE_COMPLETE": "complete_bash",
                "COMP_WORDS": f"headrace cancel {word}",
                "COMP_CWORD": "2",
            },
            capture_output=True,
            text=True,
            check=False,
        ).stdout

    assert {first, second} <= set(completed("ba").split())
    assert completed(first[:-1]).split() == [first]


def test_endpoints_are_registered_rotated_replayed_and_deleted(shell: Shell, key: str) -> None:
    url = "https://example.com/hook"
    made = shell.json("webhooks", "create", url, "--event", "batch.cancelled", key=key)
    endpoint = made["id"]
    rotated = shell.json("webhooks", "rotate", endpoint, "--overlap-seconds", "60", key=key)
    assert rotated["secret"] != made["secret"]
    batch_id = submit(shell, key)
    shell.run("cancel", batch_id, key=key)
    (event,) = shell.json("webhooks", "events", "--batch", batch_id, key=key)["data"]
    assert (event["type"], event["deliveries"][0]["endpoint_id"]) == ("batch.cancelled", endpoint)
    assert shell.json("webhooks", "deliveries", event["id"], key=key) == {"data": []}
    assert shell.json("webhooks", "replay", event["id"], key=key)["id"] == event["id"]
    assert shell.json("webhooks", "replay", endpoint, key=key) == {"replayed": 0}
    assert shell.json("webhooks", "disable", endpoint, key=key)["enabled"] is False
    assert "is disabled" in shell.run("webhooks", "ping", endpoint, key=key).stderr
    shell.json("webhooks", "enable", endpoint, key=key)
    assert shell.json("webhooks", "ping", endpoint, key=key)["type"] == "webhook.ping"
    for command in (("list",), ("events",), ("deliveries", event["id"])):
        assert shell.run("webhooks", *command, key=key).returncode == 0
    assert endpoint in shell.run("webhooks", "list", key=key).stdout
    assert shell.json("webhooks", "delete", endpoint, key=key)["deleted"] is True
    assert shell.json("webhooks", "list", key=key)["data"] == []


def test_an_operator_uses_keys_and_tenants_of_the_server(shell: Shell, key: str) -> None:
    operator = shell.json("keys", "create", "--scope", "deployment")["key"]
    (tenant,) = shell.json("tenants", "set", "acme", "--weight", "3", "--max-batches", "5", key=operator)
    assert (tenant["id"], tenant["weight"], tenant["max_batches"]) == ("acme", 3, 5)
    made = shell.json("keys", "create", "ci", "--tenant", "acme", "--expires", "90d", key=operator)
    rotated = shell.json("keys", "rotate", made["prefix"], "--keep", "1h", key=operator)
    shell.json("keys", "revoke", rotated["prefix"], key=operator)
    listed = shell.json("keys", "list", "--tenant", "acme", key=operator)
    assert [one["revoked_at"] is None for one in listed] == [True, False]
    assert listed == shell.json("keys", "list", "--tenant", "acme"), "the database says the same"
    assert shell.json("tenants", "list", key=operator) == shell.json("tenants", "list")
    log = shell.json("audit", key=operator)
    assert [entry["act"] for entry in log[:3]] == ["key.revoke", "key.rotate", "key.create"]
    assert {entry["actor"].split(":")[0] for entry in log[:3]} == {"key"}
    refused = shell.run("tenants", "set", "acme", "--weight", "9", key=key)
    assert (refused.returncode, "`deployment`" in refused.stderr) == (1, True)


def answered(shell: Shell, key: str, store: Store, file: Path, answers: dict[str, str]) -> str:
    """Submit a file of requests, and have each output be the answer to its prompt."""
    batch_id = shell.run("submit", str(file), key=key).stdout.strip()
    with store.transaction() as session:
        of_batch = select(ShardRow.id).where(ShardRow.batch_id == batch_id).order_by(ShardRow.id)
        shard_ids = session.scalars(of_batch).all()
    for shard_id in shard_ids:
        claimed = held(store, shard_id)
        results = [result(one.id, output=answers[str(one.prompts[0])]) for one in claimed.requests]
        with store.transaction() as session:
            shards.save(session, [Progress(claimed, results, running_tokens=0, is_last=True)], lease=LEASE)
    return batch_id


def test_two_batches_of_the_same_requests_are_compared(
    shell: Shell, key: str, store: Store, tmp_path: Path
) -> None:
    file = tmp_path / "rows.jsonl"
    rows = [
        {"custom_id": f"row-{i}", "prompt": f"{i} + 1 =", "expected": {"match": "number", "value": i + 1}}
        for i in range(60)
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in [*rows, {"prompt": "free"}]))
    right = {str(row["prompt"]): f"it is {i + 1}" for i, row in enumerate(rows)} | {"free": "x"}
    a = answered(shell, key, store, file, right)
    b = answered(shell, key, store, file, right | {f"{i} + 1 =": "it is 99" for i in range(30)})
    same = shell.json("compare", a, a, key=key)
    assert (same["num_lines"], same["num_scored"], same["agreement"]) == (61, 60, 1)
    assert (same["difference"], same["verdict"]) == (0, "undecided")
    assert same["more_lines"] > 0
    worse = shell.run("compare", a, b, "--json", key=key)
    found = json.loads(worse.stdout)
    assert worse.returncode == 3
    assert (found["verdict"], found["difference"], found["num_worse"]) == ("worse", -0.5, 30)
    assert found["difference_interval"][0] < -0.5 < found["difference_interval"][1] < 0
    first, second = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    for path, batch_id in ((first, a), (second, b)):
        shell.run("results", batch_id, "--output", str(path), key=key)
    from_files = shell.run("compare", str(second), str(first), "--expected", str(file), key=key)
    assert from_files.returncode == 0, from_files.stderr
    assert "better: B has more right outputs" in from_files.stdout
    assert "0.5000" in from_files.stdout


def test_a_table_may_have_a_column_of_answers() -> None:
    rule = {"match": "number", "value": 7}
    table = ["prompt,expected,seed", "a,7,7", 'b,"{""match"": ""number"", ""value"": 7}",', "c,,", "d,yes,"]
    assert read_prompts("rows.csv", [row + "\n" for row in table]).items == [
        {"prompt": "a", "expected": "7", "seed": 7},
        {"prompt": "b", "expected": rule},
        {"prompt": "c"},
        {"prompt": "d", "expected": "yes"},
    ]


def test_a_comparison_says_beforehand_how_many_requests_it_needs(shell: Shell) -> None:
    assert shell.json("compare", "--resolution", "0.1")["requests"] > 100
    done = shell.run("compare", "--resolution", "0.1", "--discordance", "0.1")
    assert "requests with a reference answer find 0.1 less." in done.stdout


def test_outputs_of_openais_form_are_compared(shell: Shell, tmp_path: Path) -> None:
    chat = {"status_code": 200, "body": {"choices": [{"message": {"content": "yes"}}]}}
    text = {"status_code": 200, "body": {"choices": [{"text": "yes"}]}}
    failed = {"status_code": 400, "body": {}}
    a, b = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    for path, responses in ((a, [chat, text, chat]), (b, [text, failed, None])):
        rows = [{"custom_id": str(i), "response": one} for i, one in enumerate(responses)]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = shell.json("compare", str(a), str(b))
    assert (found["num_lines"], found["agreement"], found["num_scored"]) == (3, pytest.approx(1 / 3), 0)
    done = shell.run("compare", str(a), str(b))
    assert "undecided: no request says what its output is expected to be" in done.stdout
    wrong = tmp_path / "wrong.jsonl"
    for content, said in (
        ("{", "line 1: this is not JSON"),
        ("3", "must be a JSON object"),
        ("{}", "`output`"),
    ):
        wrong.write_text(content)
        done = shell.run("compare", str(a), str(wrong))
        assert (done.returncode, said in done.stderr) == (1, True)


def test_an_experiment_is_started_shown_and_rolled_back(
    shell: Shell, key: str, store: Store, config: Settings
) -> None:
    seen(store, Model("small", "b" * 32, identify(config.model).tokenizer))
    asked = 'experiment={"model": "small", "share": 1}'
    options = ("--set", asked, "--max-tokens", "5")
    batch_id = shell.run("submit", "-", *options, key=key, given="one\ntwo\n").stdout.strip()
    shown = shell.run("experiment", batch_id, key=key)
    assert shown.returncode == 0, shown.stderr
    assert "undecided" in shown.stdout
    assert "small" in shown.stdout
    assert "COST" in shown.stdout
    ended = shell.json("experiment", batch_id, "--rollback", key=key)
    assert (ended["status"], ended["requests"], ended["expected"]) == ("rolled_back", 2, 0)
    assert shell.run("experiment", batch_id, "--promote", "--rollback", key=key).returncode == 1
    second = shell.run("submit", "-", "--max-tokens", "5", key=key, given="one\ntwo\n").stdout.strip()
    begun = shell.json("experiment", second, "--model", "small", "--share", "0.5", key=key)
    assert (begun["batch_id"], begun["mode"], begun["requests"]) == (second, "shadow", 1)
