"""The command line submits what lies in a bucket."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.buckets import s3_server, write_bucket_list
from tests.fixtures.shell import Shell
from worker.settings import Settings


@pytest.fixture
def s3() -> Iterator[Any]:
    with s3_server() as client:
        client.create_bucket(Bucket="mine")
        yield client


@pytest.fixture
def config(config: Settings, s3: Any, tmp_path: Path) -> Settings:
    return config.model_copy(
        update={"buckets": write_bucket_list(tmp_path, s3), "data_dir": tmp_path / "data"}
    )


def test_an_object_is_submitted_and_its_results_go_back(shell: Shell, s3: Any, config: Settings) -> None:
    key = shell.run("keys", "create").stdout.strip()
    s3.put_object(Bucket="mine", Key="t.csv", Body=b"id,text\na,one\nb,two\n")
    options = ["--prompt", "{text}", "--custom-id", "id", "--max-tokens", "5", "--name", "from a bucket"]
    to = ["--output-uri", "s3://mine/{batch_id}.csv"]
    done = shell.run("submit", "s3://mine/t.csv", *options, *to, "--json", key=key)
    assert done.returncode == 0, done.stderr
    batch = json.loads(done.stdout)
    assert (batch["name"], batch["endpoint"], batch["input_uri"]) == (
        "from a bucket", "/v1/completions", "s3://mine/t.csv",
    )  # fmt: skip
    assert batch["output_uri"] == f"s3://mine/{batch['id']}.csv"
    assert batch["request_counts"]["total"] == 2
    name = config.model.name
    body = {"model": name, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5}
    line = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body}
    s3.put_object(Bucket="mine", Key="t.jsonl", Body=json.dumps(line).encode())
    assert shell.run("submit", "s3://mine/t.jsonl", key=key).stdout.startswith("batch_")
    refused = shell.run("submit", "s3://theirs/t.jsonl", key=key)
    assert (refused.returncode, "in no bucket that you may read from" in refused.stderr) == (1, True)
    refused = shell.run("submit", "-", *to, key=key, given="one\n")
    assert "--output-uri goes with" in refused.stderr
