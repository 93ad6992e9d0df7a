"""Batches read their input from buckets of their customers, and write their results there."""

import csv
import gzip
import io
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import text

from api.buckets import objects
from api.buckets.locations import Buckets
from api.buckets.objects import PART_BYTES
from api.dependencies import Services
from api.files import writing
from api.files.reading import BatchReader
from api.files.writing import ResultWriter
from tests.api.files.test_file_batches import sql
from tests.fixtures.access import bearer, make_key
from tests.fixtures.batches import LEASE, held, result, run_to_the_end
from tests.fixtures.buckets import s3_server, write_bucket_list
from tests.fixtures.inputs import lines
from worker.settings import Settings
from worker.store.database.session import Store
from worker.store.shards import shards
from worker.store.shards.shards import Progress
from worker.values.outcomes import Outcome
from worker.values.results import RequestError

OURS = {"endpoint": "/v1/completions", "completion_window": "1h"}


@pytest.fixture(scope="module")
def server() -> Iterator[Any]:
    with s3_server() as client:
        yield client


@pytest.fixture
def s3(server: Any) -> Iterator[Any]:
    server.create_bucket(Bucket="mine")
    yield server
    for bucket in server.list_buckets()["Buckets"]:
        for found in server.list_objects_v2(Bucket=bucket["Name"]).get("Contents", ()):
            server.delete_object(Bucket=bucket["Name"], Key=found["Key"])
        server.delete_bucket(Bucket=bucket["Name"])


@pytest.fixture
def config(config: Settings, s3: Any, tmp_path: Path) -> Settings:
    more = (
        'url = "s3://inputs/of"\naccess = "read"',
        'url = "s3://theirs"\ntenants = ["acme"]',
        'url = "s3://mine/private"\ntenants = ["acme"]',
    )
    return config.model_copy(update={"buckets": write_bucket_list(tmp_path, s3, *more)})


def body_of(s3: Any, key: str) -> bytes:
    return bytes(s3.get_object(Bucket="mine", Key=key)["Body"].read())


def create(client: TestClient, **body: Any) -> dict[str, Any]:
    answer = client.post("/v1/batches", json=OURS | body)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def look(client: TestClient, batch: dict[str, Any]) -> dict[str, Any]:
    return dict(client.get(f"/v1/batches/{batch['id']}").json())


def events(store: Store) -> list[dict[str, Any]]:
    return [json.loads(body)["data"] for (body,) in sql(store, "SELECT body FROM webhook_events")]


def run(store: Store, reader: BatchReader, *, first_fails: bool = False) -> None:
    """Read the batch's input and give each request its result, the last shard first."""
    assert reader.turn()
    for (shard_id,) in reversed(sql(store, "SELECT id FROM shards ORDER BY id")):
        claimed = held(store, shard_id)
        if not first_fails or shard_id > 1:
            run_to_the_end(store, claimed)
            continue
        found = [result(one.id, output=f"out {one.prompts[0]}") for one in claimed.requests]
        failed = result(claimed.requests[0].id, outcome=Outcome.FAILED)
        found[0] = replace(failed, output=None, error=RequestError("engine_error", "it broke"))
        with store.transaction() as session:
            shards.save(session, [Progress(claimed, found, 0, is_last=True)], lease=LEASE)


def test_lines_come_from_a_bucket_and_results_go_there(
    client: TestClient, store: Store, s3: Any, reader: BatchReader, writer: ResultWriter
) -> None:
    etag = s3.put_object(Bucket="mine", Key="a/rows.jsonl", Body=lines(5))["ETag"]
    batch = create(
        client,
        input_uri="s3://mine/a/rows.jsonl",
        output_uri="s3://mine/out/{batch_id}.jsonl",
        callback_url="https://example.com/hook",
    )
    uri = f"s3://mine/out/{batch['id']}.jsonl"
    assert (batch["input_etag"], batch["output_uri"], batch["request_counts"]["total"]) == (etag, uri, 5)
    assert client.get(f"/v1/files/{batch['input_file_id']}").json()["filename"] == "rows.jsonl"
    run(store, reader, first_fails=True)
    assert look(client, batch)["status"] == "finalizing"
    assert writer.turn()
    done = look(client, batch)
    assert (done["status"], done["output_error"]) == ("completed", None)
    found = [json.loads(one) for one in body_of(s3, f"out/{batch['id']}.jsonl").splitlines()]
    assert [one["custom_id"] for one in found] == [f"row-{i}" for i in range(5)], "in the order of the input"
    assert [one["response"]["status_code"] == 200 for one in found] == [False] + 4 * [True]
    (event,) = events(store)
    assert (event["output_uri"], event["output_error"]) == (uri, None)


def test_the_fields_of_a_table_are_reordered(
    client: TestClient, store: Store, s3: Any, reader: BatchReader
) -> None:
    rows = [{"id": f"{i}", "note": f"{i}", "town": "Lisbon"} for i in range(2)]
    s3.put_object(Bucket="mine", Key="rows.jsonl", Body="\n".join(map(json.dumps, rows)).encode())
    table = {"prompt": "{*}", "custom_id": "id", "reorder_fields": True}
    create(client, input_uri="s3://mine/rows.jsonl", table=table)
    while reader.turn():
        pass
    with store.transaction() as session:
        found = session.scalars(text("SELECT prompt FROM requests ORDER BY position")).all()
    assert found == [f'{{"town": "Lisbon", "note": "{i}"}}' for i in range(2)]


@pytest.mark.parametrize("suffix", ["csv", "csv.gz", "parquet", "jsonl"])
def test_a_table_comes_by_a_template_and_goes_as_one(
    client: TestClient, store: Store, s3: Any, reader: BatchReader, writer: ResultWriter, suffix: str
) -> None:
    rows = [{"id": "a", "text": "one", "stars": 5}, {"id": "b", "text": "two", "stars": 1}]
    written = io.BytesIO()
    if suffix == "parquet":
        pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        pq.write_table(pa.Table.from_pylist(rows), written)
    elif suffix.startswith("csv"):
        rows_of_csv = b"id,text,stars\na,one,5\nb,two,1\n"
        written.write(gzip.compress(rows_of_csv) if suffix == "csv.gz" else rows_of_csv)
    else:
        written.write("\n".join(map(json.dumps, rows)).encode())
    s3.put_object(Bucket="mine", Key=f"rows.{suffix}", Body=written.getvalue())
    form = "parquet" if suffix == "parquet" else "csv"
    table = {"prompt": "Label: {text}", "custom_id": "id", "body": {"max_tokens": 5}}
    create(client, input_uri=f"s3://mine/rows.{suffix}", table=table, output_uri=f"s3://mine/out.{form}")
    run(store, reader)
    assert writer.turn()
    body = body_of(s3, f"out.{form}")
    if form == "parquet":
        found = pytest.importorskip("pyarrow.parquet").read_table(io.BytesIO(body)).to_pylist()
    else:
        found = list(csv.DictReader(io.StringIO(body.decode(), newline="")))
    assert [(one["custom_id"], one["output"]) for one in found] == [
        ("a", "out Label: one"),
        ("b", "out Label: two"),
    ]
    assert str(json.loads(found[0]["metadata"])["stars"]) == "5"


def test_a_bucket_that_is_away_gets_the_results_later(
    client: TestClient, store: Store, s3: Any, put: Any, reader: BatchReader, writer: ResultWriter
) -> None:
    file_id = put(lines(2)).json()["id"]
    url = "https://example.com/hook"
    batch = create(client, input_file_id=file_id, output_uri="s3://mine/o.jsonl", callback_url=url)
    run(store, reader)
    s3.delete_bucket(Bucket="mine")
    assert writer.turn()
    waiting = look(client, batch)
    assert (waiting["status"], waiting["output_file_id"], events(store)) == ("finalizing", None, [])
    assert "s3://mine" in waiting["output_error"]
    assert not writer.turn(), "not at once"
    s3.create_bucket(Bucket="mine")
    sql_now(store)
    assert writer.turn()
    done = look(client, batch)
    assert (done["status"], done["output_error"]) == ("completed", None)
    assert len(body_of(s3, "o.jsonl").splitlines()) == 2
    assert [event["output_error"] for event in events(store)] == [None]


def test_a_bucket_that_stays_away_does_not_hold_the_batch_for_ever(
    client: TestClient, store: Store, s3: Any, put: Any, reader: BatchReader, writer: ResultWriter,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(writing, "MAX_TRIES", 2)
    file_id = put(lines(1)).json()["id"]
    url = "https://example.com/hook"
    batch = create(client, input_file_id=file_id, output_uri="s3://mine/o.csv", callback_url=url)
    run(store, reader)
    s3.delete_bucket(Bucket="mine")
    for _ in range(2):
        sql_now(store)
        assert writer.turn()
    done = look(client, batch)
    assert (done["status"], done["output_file_id"] is None) == ("completed", False)
    (event,) = events(store)
    assert event["output_error"] == done["output_error"] is not None


def test_a_writer_that_dies_after_the_object_leaves_it_to_the_next(
    client: TestClient, store: Store, s3: Any, put: Any, reader: BatchReader, writer: ResultWriter,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    file_id = put(lines(2)).json()["id"]
    url = "https://example.com/hook"
    batch = create(client, input_file_id=file_id, output_uri="s3://mine/o.jsonl", callback_url=url)
    run(store, reader)

    def die(*_: Any) -> None:
        raise SystemExit

    with monkeypatch.context() as patch:
        patch.setattr(ResultWriter, "_finish", die)
        with pytest.raises(SystemExit):
            writer.turn()
    first = body_of(s3, "o.jsonl")
    assert (look(client, batch)["status"], events(store)) == ("finalizing", [])
    sql_now(store)  # its lease ends
    assert writer.turn()
    assert (look(client, batch)["status"], len(events(store))) == ("completed", 1)
    assert body_of(s3, "o.jsonl") == first


def sql_now(store: Store) -> None:
    with store.transaction() as session:
        session.execute(text("UPDATE batch_files SET due_at = now()"))


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"input_uri": "file:///etc/passwd"}, 400, "input_uri"),
        ({"input_uri": "http://169.254.169.254/latest/meta-data"}, 400, "input_uri"),
        ({"input_uri": "memory:///x"}, 400, "input_uri"),
        ({"input_uri": "s3://mine"}, 400, "input_uri"),
        ({"input_uri": "s3://mine/../theirs/x"}, 400, "input_uri"),
        ({"input_uri": "s3://mine//x"}, 400, "input_uri"),
        ({"input_uri": "s3://mine/%2e%2e/x"}, 400, "input_uri"),
        ({"input_uri": "s3://mine/x?versionId=1"}, 400, "input_uri"),
        ({"input_uri": "s3://mine@127.0.0.1/x"}, 403, "input_uri"),
        ({"input_uri": "s3://mineral/x.jsonl"}, 403, "input_uri"),
        ({"input_uri": "s3://theirs/x.jsonl"}, 403, "input_uri"),
        ({"input_uri": "s3://inputs/x.jsonl"}, 403, "input_uri"),
        ({"input_uri": "s3://mine/private/x.jsonl"}, 403, "input_uri"),
        ({"input_uri": "s3://mine/none.jsonl"}, 400, "input_uri"),
        ({"input_uri": "s3://mine/rows.csv"}, 400, "table"),
        ({"input_uri": "s3://mine/x.jsonl", "table": {"prompt": "{"}}, 400, "table.prompt"),
        (
            {"input_uri": "s3://mine/x.jsonl", "table": {"prompt": "{x}", "reorder_fields": True}},
            400,
            "table.prompt",
        ),
        ({"input_file_id": "file-1", "table": {"prompt": "x"}}, 400, "body"),
        ({"input_file_id": "file-1", "input_uri": "s3://mine/x"}, 400, "body"),
        ({}, 400, "body"),
        ({"input_file_id": "file-1", "output_uri": "s3://mine/out.txt"}, 400, "output_uri"),
        ({"input_file_id": "file-1", "output_uri": "s3://inputs/of/out.csv"}, 403, "output_uri"),
        ({"input_file_id": "file-1", "output_uri": "file:///tmp/out.csv"}, 400, "output_uri"),
    ],
)
def test_what_is_not_allowed_is_refused(
    client: TestClient, body: dict[str, Any], status: int, param: str
) -> None:
    answer = client.post("/v1/batches", json=OURS | body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (status, param), answer.text
    assert client.get("/v1/files").json()["data"] == []


def test_a_bucket_is_its_tenants(client: TestClient, store: Store, s3: Any) -> None:
    s3.create_bucket(Bucket="theirs")
    s3.put_object(Bucket="theirs", Key="rows.jsonl", Body=lines(1))
    client.app.state.services = replace(  # type: ignore[attr-defined]
        client.app.state.services,
        settings=client.app.state.services.settings.model_copy(update={"auth": "keys"}),  # type: ignore[attr-defined]
    )
    body = OURS | {"input_uri": "s3://theirs/rows.jsonl"}
    ours, theirs = (bearer(make_key(store, tenant)) for tenant in ("ours", "acme"))
    assert client.post("/v1/batches", json=body, headers=ours).status_code == 403
    assert client.post("/v1/batches", json=body, headers=theirs).status_code == 200


def test_wrong_lines_of_an_object_are_named(client: TestClient, s3: Any) -> None:
    s3.put_object(Bucket="mine", Key="rows.jsonl", Body=lines(1) + b"{\n")
    answer = client.post("/v1/batches", json=OURS | {"input_uri": "s3://mine/rows.jsonl"})
    assert (answer.status_code, answer.json()["error"]["lines"][0]["line"]) == (400, 2)
    s3.put_object(Bucket="mine", Key="rows.csv", Body=b"text\none\n")
    body = OURS | {"input_uri": "s3://mine/rows.csv", "table": {"prompt": "{label}"}}
    answer = client.post("/v1/batches", json=body)
    assert "rows.csv, row 1: there is no column 'label'" in answer.json()["error"]["message"]
    zeros = gzip.compress(b"text\n" + bytes(200_000))
    s3.put_object(Bucket="mine", Key="large.csv.gz", Body=zeros)
    answer = client.post("/v1/batches", json=body | {"input_uri": "s3://mine/large.csv.gz"})
    assert answer.status_code == 413, "unpacked, it is over the limit"
    s3.put_object(Bucket="mine", Key="large.jsonl", Body=b" " * 100_001)
    answer = client.post("/v1/batches", json=OURS | {"input_uri": "s3://mine/large.jsonl"})
    assert answer.status_code == 413


def test_the_same_key_reads_the_object_once(client: TestClient, s3: Any) -> None:
    s3.put_object(Bucket="mine", Key="rows.jsonl", Body=lines(1))
    body = OURS | {"input_uri": "s3://mine/rows.jsonl"}
    headers = {"Idempotency-Key": "once"}
    first = client.post("/v1/batches", json=body, headers=headers).json()
    s3.delete_object(Bucket="mine", Key="rows.jsonl")
    assert client.post("/v1/batches", json=body, headers=headers).json()["id"] == first["id"]


def test_a_lost_answer_makes_no_second_batch(client: TestClient, s3: Any) -> None:
    s3.put_object(Bucket="mine", Key="rows.jsonl", Body=lines(1))
    first = create(client, input_uri="s3://mine/rows.jsonl")
    body = OURS | {"input_uri": "s3://mine/rows.jsonl"}
    again = client.post("/v1/batches", json=body, headers={"x-stainless-retry-count": "1"}).json()
    assert again["id"] == first["id"]


def test_without_a_list_there_are_no_buckets(client: TestClient, services: Services) -> None:
    client.app.state.services = replace(services, buckets=Buckets())  # type: ignore[attr-defined]
    answer = client.post("/v1/batches", json=OURS | {"input_uri": "s3://mine/rows.jsonl"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "no_buckets")


def test_a_large_object_goes_in_parts(s3: Any, services: Services, tmp_path: Path) -> None:
    content = b"0123456789" * (PART_BYTES // 10 + 1)
    (tmp_path / "large").write_bytes(content)
    place = services.buckets.find("s3://mine/large.csv", "default", to_write=True, param="x")
    objects.write(place, tmp_path / "large")
    assert "-" in s3.head_object(Bucket="mine", Key="large.csv")["ETag"], "its ETag is that of parts"
    found = objects.read(place)
    assert (found.num_bytes, b"".join(found.pieces)) == (len(content), content)


@pytest.mark.parametrize(
    ("listed", "told"),
    [
        ('[[bucket]]\nurl = "file:///etc"', "must be s3://"),
        ('[[bucket]]\nurl = "s3://"', "must be s3://"),
        ('[[bucket]]\nurl = "s3://a"\nsecret = "very"', "bucket.0.secret"),
        ('[[bucket]]\nurl = "s3://a"\noptions = { no_such_option = "very" }', "s3://a"),
        ("[[bucket]", "is not TOML"),
        ("", "bucket"),
    ],
)
def test_a_wrong_list_ends_the_process(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], listed: str, told: str
) -> None:
    (tmp_path / "list.toml").write_text(listed)
    with pytest.raises(SystemExit):
        objects.load_buckets(tmp_path / "list.toml")
    error = capsys.readouterr().err
    assert error.startswith("HEADRACE_BUCKETS: ")
    assert told in error
    assert "very" not in error
