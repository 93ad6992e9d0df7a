"""Batch files as people have them: wrong lines, several endpoints, other spellings, other encodings."""

import codecs
import gzip
import json
from collections.abc import Callable
from typing import Any

import pytest
from fastapi.testclient import TestClient
from httpx import Response

from api.files import reading
from api.files.reading import BatchReader
from api.files.writing import ResultWriter
from api.main import create_app
from tests.api.files.test_file_batches import content, look, sql
from tests.fixtures.batches import LEASE, held, result, run_to_the_end
from tests.fixtures.inputs import body, line, lines
from worker.settings import Settings
from worker.store.database.session import Store
from worker.store.shards import shards
from worker.store.shards.shards import Progress
from worker.values.outcomes import Outcome

Put = Callable[..., Response]
CHAT = {"model": "served", "messages": [{"role": "user", "content": "hi"}]}
WRONG = b"".join(
    (
        line("row-0"),
        b"{broken\n",
        b"\n",
        line("row-1", body=body(temperature=3)),
        line("row-0"),
        line("row-2"),
        b'{"custom_id": "row-3"}\n',
    )
)


def test_a_line_may_say_what_its_output_is_expected_to_be(
    store: Store,
    reader: BatchReader,
    put: Put,
    create: Any,
) -> None:
    plain = json.loads(line("row-0"))
    good = json.dumps(plain | {"expected": {"match": "regex", "value": "[a-z]+"}}).encode() + b"\n"
    wrong = json.dumps(plain | {"custom_id": "row-1", "expected": {"match": "regex"}}).encode() + b"\n"
    refused = put(good + wrong).json()["error"]
    assert [one["message"] for one in refused["lines"]] == ["expected: value: is required"]
    create(good)
    while reader.turn():
        pass
    kept = sql(store, "SELECT expected FROM requests")
    assert [json.loads(one) for (one,) in kept] == [{"match": "regex", "value": "[a-z]+"}]


def run(store: Store, reader: BatchReader, writer: ResultWriter) -> None:
    """Read every batch, run every ready shard, and write every file."""
    while reader.turn():
        pass
    for (shard_id,) in sql(store, "SELECT id FROM shards WHERE state = 'ready' ORDER BY id"):
        run_to_the_end(store, held(store, shard_id))
    while writer.turn():
        pass


@pytest.mark.parametrize("chunk", [1, 3, 2048])
def test_wrong_lines_become_failed_requests(
    client: TestClient,
    store: Store,
    reader: BatchReader,
    writer: ResultWriter,
    put: Put,
    create: Any,
    monkeypatch: pytest.MonkeyPatch,
    chunk: int,
) -> None:
    monkeypatch.setattr(reading, "CHUNK_LINES", chunk)
    monkeypatch.setattr(reading, "TURN_LINES", 2 * chunk)
    assert put(WRONG).status_code == 400
    file = put(WRONG, wrong_lines="fail").json()
    assert file["status_details"] == "4 lines are wrong and will fail in a batch."
    batch = create(b"", input_file_id=file["id"])
    run(store, reader, writer)
    done = look(client, batch)
    counts = done["request_counts"]
    assert (done["status"], counts["total"], counts["completed"], counts["failed"]) == ("completed", 6, 2, 4)
    assert sorted(one["custom_id"] for one in content(client, done["output_file_id"])) == ["row-0", "row-2"]
    failed = content(client, done["error_file_id"])
    answers = {one["response"]["status_code"] for one in failed}
    told = [(one["custom_id"], one["response"]["body"]["error"]) for one in failed]
    assert answers == {400}
    assert [(custom_id, error["code"], error["message"].partition(": ")[0]) for custom_id, error in told] == [
        (None, "invalid_json", "line 2"),
        ("row-1", "out_of_range", "line 4"),
        (None, "duplicate_custom_id", "line 5"),
        ("row-3", "invalid_method", "line 7"),
    ]
    assert {error["type"] for _, error in told} == {"invalid_request_error"}
    assert sql(store, "SELECT DISTINCT state FROM shards") == [("finished",)]


def test_a_batch_whose_every_line_is_wrong_completes(
    client: TestClient, store: Store, reader: BatchReader, writer: ResultWriter, put: Put, create: Any
) -> None:
    file = put(b"{}\n{}\n", wrong_lines="fail").json()
    batch = create(b"", input_file_id=file["id"])
    run(store, reader, writer)
    done = look(client, batch)
    assert (done["status"], done["output_file_id"], done["request_counts"]["failed"]) == (
        "completed",
        None,
        2,
    )
    refused = client.post(f"/v1/batch/{batch['id']}/retry")
    assert refused.status_code == 409, "what is wrong stays wrong"


def test_wrong_lines_count_for_max_failed(
    client: TestClient, store: Store, reader: BatchReader, writer: ResultWriter, put: Put, create: Any
) -> None:
    batch = create(b"", input_file_id=put(WRONG, wrong_lines="fail").json()["id"], max_failed=3)
    run(store, reader, writer)
    done = look(client, batch)
    assert (done["status"], done["errors"]["data"][0]["code"]) == ("failed", "max_failed_exceeded")


def test_the_setting_decides_where_the_form_does_not(
    client: TestClient,  # noqa: ARG001 - empties the tables
    config: Settings,
) -> None:
    with TestClient(create_app(config.model_copy(update={"wrong_lines": "fail"}))) as own:
        for fields, status in (({}, 200), ({"wrong_lines": "refuse"}, 400)):
            answer = own.post(
                "/v1/files", data={"purpose": "batch"} | fields, files={"file": ("in.jsonl", WRONG)}
            )
            assert answer.status_code == status, answer.text
        announced = {"purpose": "batch", "filename": "x", "bytes": len(WRONG), "mime_type": "text/plain"}
        for fields, status in (({"wrong_lines": "refuse"}, 400), ({}, 200)):
            upload = own.post("/v1/uploads", json=announced).json()["id"]
            part = own.post(f"/v1/uploads/{upload}/parts", files={"data": ("x", WRONG)}).json()["id"]
            answer = own.post(f"/v1/uploads/{upload}/complete", json={"part_ids": [part]} | fields)
            assert answer.status_code == status, answer.text


def test_every_line_of_a_mixed_file_goes_to_its_own_endpoint(
    client: TestClient, store: Store, reader: BatchReader, writer: ResultWriter, create: Any
) -> None:
    mixed = lines(1) + line("chat", url="/v1/chat/completions", body=CHAT)
    batch = create(mixed, endpoint="/v1/chat/completions")
    run(store, reader, writer)
    done = look(client, batch)
    assert (done["status"], done["error_file_id"]) == ("completed", None)
    found = {
        one["custom_id"]: one["response"]["body"]["object"] for one in content(client, done["output_file_id"])
    }
    assert found == {"row-0": "text_completion", "chat": "chat.completion"}


def test_the_retry_of_a_mixed_file_is_one(
    client: TestClient, store: Store, reader: BatchReader, writer: ResultWriter, create: Any
) -> None:
    mixed = lines(2) + line("chat", url="/v1/chat/completions", body=CHAT)
    lifetime = {"anchor": "created_at", "seconds": 7200}
    batch = create(mixed, endpoint="/v1/completions", output_expires_after=lifetime)
    assert reader.turn()
    for (shard_id,) in sql(store, "SELECT id FROM shards ORDER BY id"):
        claimed = held(store, shard_id)
        failed = [result(one.id, outcome=Outcome.FAILED) for one in claimed.requests if one.position]
        right = [result(one.id) for one in claimed.requests if not one.position]
        with store.transaction() as session:
            shards.save(session, [Progress(claimed, failed + right, 0, is_last=True)], lease=LEASE)
    assert writer.turn()
    before = look(client, batch)
    retried = client.post(f"/v1/batch/{batch['id']}/retry").json()["batch_id"]
    assert not reader.turn()
    again = look(client, {"id": retried})
    same = ("endpoint", "input_file_id", "completion_window", "metadata", "model")
    assert [again[name] for name in same] == [before[name] for name in same]
    assert (again["status"], again["request_counts"]["total"]) == ("in_progress", 2)
    run(store, reader, writer)
    done = look(client, {"id": retried})
    assert (done["status"], done["error_file_id"]) == ("completed", None)
    assert client.get(f"/v1/files/{done['output_file_id']}").json()["expires_at"] is not None
    found = {
        one["custom_id"]: one["response"]["body"]["object"] for one in content(client, done["output_file_id"])
    }
    assert found == {"row-1": "text_completion", "chat": "chat.completion"}
    assert look(client, batch) == before


@pytest.mark.parametrize(
    "url",
    [
        "https://api.openai.com/v1/chat/completions",
        "http://10.0.0.1:8000/v1/chat/completions/",
        "https://some.openai.azure.com/openai/v1/chat/completions",
        "/chat/completions",
    ],
)
def test_other_spellings_of_a_line_are_read(
    client: TestClient, store: Store, reader: BatchReader, create: Any, url: str
) -> None:
    given = line("a", url=url, body=CHAT, method="post") + line("b", url="/v1/chat/completions", body=CHAT)
    batch = create(given, endpoint=url)
    assert batch["endpoint"] == "/v1/chat/completions"
    reader.turn()
    assert look(client, batch)["errors"] is None
    assert sql(store, "SELECT custom_id, endpoint FROM requests ORDER BY 1") == [("a", None), ("b", None)]


@pytest.mark.parametrize(
    "url", ["https://api.openai.com/v1/images", "ftp://x/v1/completions", "/v1/completions?x"]
)
def test_other_urls_are_refused(put: Put, url: str) -> None:
    assert put(line("a", url=url)).json()["error"]["code"] == "invalid_url"


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
@pytest.mark.parametrize(
    ("bom", "encoding"),
    [
        (codecs.BOM_UTF8, "utf-8"),
        (codecs.BOM_UTF16_LE, "utf-16-le"),
        (codecs.BOM_UTF16_BE, "utf-16-be"),
        (b"", "utf-16-le"),
        (b"", "utf-16-be"),
    ],
)
def test_every_unicode_encoding_is_read(
    client: TestClient,
    store: Store,
    reader: BatchReader,
    put: Put,
    create: Any,
    bom: bytes,
    encoding: str,
    pack: Callable[[bytes], bytes],
) -> None:
    text = json.dumps(json.loads(line("ä", body=body(prompt="grüße 🌊" * 20))), ensure_ascii=False) + "\r\n"
    answer = put(pack(bom + (text * 1 + lines(20).decode()).encode(encoding)))
    assert answer.status_code == 200, answer.text
    create(b"", input_file_id=answer.json()["id"])
    reader.turn()
    first = "SELECT custom_id, prompt FROM requests WHERE position = 0"
    assert sql(store, first) == [("ä", "grüße 🌊" * 20)]
    kept = client.get(f"/v1/files/{answer.json()['id']}/content").content
    assert kept.removeprefix(codecs.BOM_UTF8) == (text + lines(20).decode()).encode()


def test_damaged_utf_16_is_refused(put: Put) -> None:
    error = put(codecs.BOM_UTF16_LE + lines(1).decode().encode("utf-16-le") + b"\x00\xd8\x0a\x00").json()[
        "error"
    ]
    assert error["message"].startswith("file: is not valid UTF-16"), error


@pytest.mark.parametrize("purpose", ["assistants", "evals", "fine-tune", "user_data", "vision"])
def test_files_of_other_purposes_are_stored_as_they_are(client: TestClient, put: Put, purpose: str) -> None:
    packed = gzip.compress(b"%PDF\x00not lines")
    file = put(packed, purpose=purpose).json()
    assert (file["purpose"], file["bytes"], file["status_details"]) == (purpose, len(packed), None)
    kept = client.get(f"/v1/files/{file['id']}/content")
    assert (kept.content, kept.headers["content-type"]) == (packed, "application/octet-stream")
    described = client.get("/openapi.json").json()["paths"]["/v1/files/{file_id}/content"]["get"]
    for status in ("200", "206"):
        assert kept.headers["content-type"] in described["responses"][status]["content"]
    assert [one["id"] for one in client.get("/v1/files", params={"purpose": purpose}).json()["data"]] == [
        file["id"]
    ]
    request = {"input_file_id": file["id"], "endpoint": "/v1/completions", "completion_window": "1h"}
    refused = client.post("/v1/batches", json=request)
    assert refused.status_code == 400
    assert f"must be batch, but is {purpose}" in refused.json()["error"]["message"]
    announced = {"purpose": purpose, "filename": "a", "bytes": 3, "mime_type": "text/plain"}
    upload = client.post("/v1/uploads", json=announced).json()["id"]
    part = client.post(f"/v1/uploads/{upload}/parts", files={"data": ("x", b"abc")}).json()["id"]
    done = client.post(f"/v1/uploads/{upload}/complete", json={"part_ids": [part]}).json()
    assert (done["status"], done["file"]["purpose"]) == ("completed", purpose)


def test_a_field_that_changes_how_a_file_is_read_comes_before_it(client: TestClient) -> None:
    for name, value in (("purpose", "user_data"), ("wrong_lines", "fail")):
        files = [("file", ("in.jsonl", lines(1))), (name, (None, value))]
        if name != "purpose":
            files.insert(0, ("purpose", (None, "batch")))
        error = client.post("/v1/files", files=files).json()["error"]
        assert error["message"] == f"{name}: must come before the file in the form"
