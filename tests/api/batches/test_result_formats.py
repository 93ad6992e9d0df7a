"""Results in order of the requests, with them, and as CSV or Parquet."""

import csv
import io
import json
import struct
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

import pytest
from fastapi.testclient import TestClient

from api import tables
from api.batches import service
from api.tables import Column, CsvTable, ParquetTable
from tests.fixtures.batches import LEASE, held, result, run_to_the_end, submit
from worker.quality.expected import Expected
from worker.store.batches import batches
from worker.store.batches.batches import NewBatch
from worker.store.database.session import Store
from worker.store.requests.requests import NewRequest
from worker.store.shards import shards
from worker.store.shards.shards import Progress
from worker.values.results import Payload
from worker.values.sampling import SamplingParams

IN_ORDER = {"order": "input"}


def indices(client: TestClient, batch_id: str, **params: Any) -> tuple[list[int], int, bool]:
    page = client.get(f"/v1/batch/{batch_id}/results", params=params).json()
    return [one["index"] for one in page["data"]], page["next"], page["has_more"]


def test_results_come_in_order_of_the_requests(client: TestClient, store: Store) -> None:
    batch_id = submit(store, num_requests=6)
    run_to_the_end(store, held(store, 3))
    assert indices(client, batch_id, **IN_ORDER) == ([], 0, False), "the first is not done yet"
    run_to_the_end(store, held(store, 1))
    assert indices(client, batch_id, **IN_ORDER) == ([0, 1], 2, False)
    assert indices(client, batch_id, **IN_ORDER, limit=1) == ([0], 1, True)
    assert indices(client, batch_id, **IN_ORDER, after=2) == ([], 2, False)
    assert indices(client, batch_id) == ([4, 5, 0, 1], 4, False)
    run_to_the_end(store, held(store, 2))
    assert indices(client, batch_id, **IN_ORDER, after=2) == ([2, 3, 4, 5], 6, False)
    assert indices(client, batch_id, **IN_ORDER, after=6) == ([], 6, False)


def test_whoever_follows_or_waits_in_order_skips_nothing(
    client: TestClient, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch_id = submit(store, num_requests=4)
    run_to_the_end(store, held(store, 2))
    page, has_news, looks = service.page, service.has_news, []

    def finish(*args: Any, **options: Any) -> Any:
        looks.append(page(*args, **options))
        if len(looks) == 2:
            run_to_the_end(store, held(store, 1))
        return looks[-1]

    def look(*args: Any, **options: Any) -> bool:
        looks.append(has_news(*args, **options))
        return looks[-1]

    monkeypatch.setattr(service, "has_news", look)
    waiting = {"wait": 0.001} | IN_ORDER
    assert client.get(f"/v1/batch/{batch_id}/results", params=waiting).json()["data"] == []
    assert looks[0] is False, "what is done comes after what is not"
    looks.clear()
    monkeypatch.setattr(service, "page", finish)
    lines = client.get(f"/v1/batch/{batch_id}/results", params={"follow": 1} | IN_ORDER).text
    assert [json.loads(line)["index"] for line in lines.splitlines()] == [0, 1, 2, 3]


def test_a_result_brings_its_request_on_request(client: TestClient, store: Store) -> None:
    asked = [
        NewRequest("é,\n", max_tokens=3, expected=Expected.from_json({"match": "number", "value": 3})),
        NewRequest("", max_tokens=1, inputs=("a", "b"), metadata={"label": "\0x"}),
    ]
    with store.transaction() as session:
        batch_id = batches.submit(session, NewBatch(SamplingParams(max_tokens=3), asked), shard_size=2)
    run_to_the_end(store, held(store, 1))
    url = f"/v1/batch/{batch_id}/results"
    assert [one["request"] for one in client.get(url).json()["data"]] == [None, None]
    found = client.get(url, params={"include": "request"}).json()["data"]
    assert [one["request"] for one in found] == [
        {
            "prompt": "é,\n",
            "inputs": None,
            "max_tokens": 3,
            "metadata": None,
            "expected": {"match": "number", "value": 3, "within": 0.0},
        },
        {
            "prompt": None,
            "inputs": ["a", "b"],
            "max_tokens": 1,
            "metadata": {"label": "\0x"},
            "expected": None,
        },
    ]
    table = client.get(url, params={"include": "request", "format": "csv"}).text
    rows = list(csv.DictReader(io.StringIO(table, newline="")))
    assert [(row["prompt"], row["max_tokens"]) for row in rows] == [("é,\n", "3"), ('["a", "b"]', "1")]


@pytest.fixture
def varied(store: Store) -> str:
    """A batch with a text that CSV must quote, an embedding, and a failed request."""
    batch_id = submit(store, num_requests=5)
    for shard_id in (2, 1):
        claimed = held(store, shard_id)
        results = [result(one.id, output=f'a "{one.position}",\r\nü') for one in claimed.requests]
        results[0] = replace(results[0], payload=Payload(embeddings=(struct.pack("<2f", 0.5, -1.0),)))
        with store.transaction() as session:
            shards.save(session, [Progress(claimed, results, running_tokens=0, is_last=True)], lease=LEASE)
    return batch_id


def test_csv_holds_every_result(client: TestClient, varied: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "PAGE", 1)
    client.post(f"/v1/batch/{varied}/cancel")
    answer = client.get(f"/v1/batch/{varied}/results", params={"format": "csv"} | IN_ORDER)
    assert answer.headers["content-type"].startswith("text/csv")
    assert answer.headers["content-disposition"] == f'attachment; filename="{varied}.csv"'
    rows = list(csv.DictReader(io.StringIO(answer.content.decode(), newline="")))
    assert [row["index"] for row in rows] == list("01234")
    assert rows[1]["output"] == 'a "1",\r\nü'
    assert json.loads(rows[0]["embedding"]) == [0.5, -1.0]
    assert (rows[4]["status"], rows[4]["error_code"], rows[4]["output"]) == (
        "cancelled",
        "batch_cancelled",
        "",
    )
    by_header = client.get(f"/v1/batch/{varied}/results", headers={"accept": "text/csv"})
    assert len(list(csv.reader(io.StringIO(by_header.text)))) == 6


def test_parquet_holds_every_result(client: TestClient, varied: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    monkeypatch.setattr(service, "PAGE", 2)
    monkeypatch.setattr(tables, "GROUP_ROWS", 2)
    client.post(f"/v1/batch/{varied}/cancel")
    params = {"format": "parquet", "include": "request"} | IN_ORDER
    answer = client.get(f"/v1/batch/{varied}/results", params=params)
    assert answer.headers["content-type"] == "application/vnd.apache.parquet"
    file = pq.ParquetFile(io.BytesIO(answer.content))
    assert file.num_row_groups == 3
    rows = file.read().to_pylist()
    assert [row["index"] for row in rows] == [0, 1, 2, 3, 4]
    assert (rows[1]["output"], rows[0]["embedding"]) == ('a "1",\r\nü', [0.5, -1.0])
    assert (rows[3]["prompt"], rows[3]["input_tokens"]) == ("prompt 3", 3)
    assert rows[0]["created_at"].tzinfo is not None
    assert (rows[4]["status"], rows[4]["output"], rows[4]["started_at"]) == ("cancelled", None, None)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_table_without_results_has_its_header(client: TestClient, store: Store, kind: str) -> None:
    pytest.importorskip("pyarrow")
    import pyarrow.csv as pa_csv
    import pyarrow.parquet as pq

    batch_id = submit(store)
    content = client.get(f"/v1/batch/{batch_id}/results", params={"format": kind}).content
    read = pq.read_table if kind == "parquet" else pa_csv.read_csv
    found = read(io.BytesIO(content))
    assert found.num_rows == 0
    assert found.column_names[:3] == ["index", "custom_id", "status"]


def test_wrong_formats_are_refused_by_name(
    client: TestClient, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch_id = submit(store)
    for params in ({"format": "xml"}, {"format": "json", "follow": 1}):
        answer = client.get(f"/v1/batch/{batch_id}/results", params=params)
        assert (answer.status_code, answer.json()["error"]["param"]) == (422, "format")
    monkeypatch.setattr("api.batches.routes.has_parquet", lambda: False)
    error = client.get(f"/v1/batch/{batch_id}/results", params={"format": "parquet"}).json()["error"]
    assert "headrace[parquet]" in error["message"]


@pytest.mark.parametrize("kind", [CsvTable, ParquetTable])
def test_a_table_never_holds_many_rows(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits to be written stays within a row group, however many rows there are."""
    pytest.importorskip("pyarrow")
    monkeypatch.setattr(tables, "GROUP_BYTES", 100_000)
    table = kind({"text": Column.TEXT})
    rows: Iterator[dict[str, str]] = iter({"text": f"{i:09}" * 20} for i in range(20_000))
    written, longest_wait, waited = 0, 0, 0
    while page := list(islice(rows, 100)):
        piece = table.write(page)
        waited = 0 if piece else waited + 1
        longest_wait = max(longest_wait, waited)
        written += len(piece)
    assert longest_wait < 10
    assert written > 100_000
