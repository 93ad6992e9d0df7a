import gzip
import hashlib
import os
import re
import resource
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path

import anyio
import pytest
from fastapi import Request as HttpRequest
from fastapi.testclient import TestClient
from httpx import Response
from sqlalchemy import text

from api.blobs.store import StorageError
from api.dependencies import Services
from api.errors import ClientGoneError
from api.files.form import read_form
from api.files.tidying import tidy
from api.guards.traffic import Traffic
from tests.fixtures.inputs import body, line, lines
from worker.settings import Settings
from worker.store.database.session import Store
from worker.store.files import files

Put = Callable[..., Response]
LONG_AGO = 1_000_000_000


def blobs(config: Settings) -> list[str]:
    return sorted(path.name for path in (config.data_dir / "blobs").glob("??/*"))


def leftovers(config: Settings) -> list[Path]:
    return list((config.data_dir / "incoming").glob("*"))


def test_a_file_is_kept_by_its_content(client: TestClient, config: Settings, put: Put) -> None:
    content = lines(7)
    first, second = put(content), put(content)
    assert first.status_code == 200, first.text
    assert first.json()["bytes"] == len(content)
    assert first.json()["id"] != second.json()["id"]
    assert blobs(config) == [hashlib.sha256(content).hexdigest()]
    assert client.get(f"/v1/files/{first.json()['id']}/content").content == content
    assert leftovers(config) == []


def test_gzip_is_unpacked_whether_the_file_or_the_body_is_packed(client: TestClient, put: Put) -> None:
    content = lines(200)
    packed = put(gzip.compress(content[:9000]) + gzip.compress(content[9000:]))
    assert packed.status_code == 200, packed.text
    assert client.get(f"/v1/files/{packed.json()['id']}/content").content == content
    request = client.build_request(
        "POST", "/v1/files", data={"purpose": "batch"}, files={"file": ("x", content)}
    )
    answer = client.post(
        "/v1/files",
        content=gzip.compress(request.read()),
        headers={"content-type": request.headers["content-type"], "content-encoding": "gzip"},
    )
    assert answer.json()["bytes"] == len(content), answer.text


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", "empty_file"),
        (b"\n\n \n", "empty_file"),
        (gzip.compress(lines(3))[:-9], "invalid_value"),
        (b"\x1f\x8bnot gzip", "invalid_value"),
    ],
)
def test_what_has_no_lines_is_refused(config: Settings, put: Put, content: bytes, code: str) -> None:
    answer = put(content)
    assert answer.status_code == 400, answer.text
    assert (answer.json()["error"]["param"], answer.json()["error"]["code"]) == ("file", code)
    assert blobs(config) == leftovers(config) == []


@pytest.mark.parametrize(
    ("wrong", "code", "param"),
    [
        (b"{\n", "invalid_json", None),
        (b"[1]\n", "invalid_json", None),
        (b'{"custom_id": "\xff"}\n', "invalid_json", None),
        (b"[" * 1500 + b"\n", "invalid_json", None),
        (line(None), "missing_field", "custom_id"),
        (line(""), "wrong_length", "custom_id"),
        (line(7), "wrong_type", "custom_id"),
        (line("x" * 65), "wrong_length", "custom_id"),
        (line("a\x00"), "invalid_value", "custom_id"),
        (line("row-0"), "duplicate_custom_id", "custom_id"),
        (line("a", method="GET"), "invalid_method", "method"),
        (line("a", method=None), "invalid_method", "method"),
        (line("a", url="/v1/other"), "invalid_url", "url"),
        (line("a", url=None), "invalid_url", "url"),
        (line("a", extra=1), "unknown_field", "extra"),
        (line("a", body=None), "invalid_body", "body"),
        (line("a", body=body(stream=True)), "invalid_value", "body.stream"),
        (line("a", body=body(model="other")), "model_not_found", "body.model"),
        (line("a", body=body(temperature=3)), "out_of_range", "body.temperature"),
        (line("a", body=body(temprature=1)), "unknown_field", "body.temprature"),
        (line("a", url="/v1/chat/completions"), "missing_field", "body.messages"),
        (line("a", body=body(prompt="x" * 2000)), "line_too_long", None),
        (line("a", body=body(max_tokens=64)), "context_length_exceeded", "body.max_tokens"),
    ],
)
def test_a_wrong_line_is_refused_by_number(
    config: Settings, put: Put, wrong: bytes, code: str, param: str | None
) -> None:
    answer = put(lines(2) + b"\r\n" + wrong + line("row-1"))
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    first = error["lines"][0]
    assert (first["line"], first["code"], first["param"]) == (4, code, param)
    assert error["message"].startswith("line 4: ")
    assert error["code"] == code
    assert blobs(config) == leftovers(config) == []


def test_every_wrong_line_is_told_with_its_number_and_its_reason(put: Put) -> None:
    wrong = {
        3: (b"{broken\n", "the line is not valid JSON: key must be a string at column 2"),
        7: (line("x" * 65), "custom_id: must have at most 64 characters"),
        8: (b" " * 3000 + b"{}\n", "the line is longer than the limit of 2000 bytes"),
        150: (line("row-0"), "custom_id: an earlier line has the same custom_id 'row-0'"),
        249: (line("a", body=body(temperature=3)), "body.temperature: must be at most 2, but is 3"),
        250: (b"x" * 9000, "the line is longer than the limit of 2000 bytes"),
    }
    good = lines(250).splitlines(keepends=True)
    content = b"".join(wrong[i][0] if i in wrong else good[i - 1] for i in range(1, 251))
    error = put(content).json()["error"]
    told = {number: message for number, (_, message) in wrong.items()}
    assert {one["line"]: one["message"] for one in error["lines"]} == told
    assert error["message"] == f"line 3: {told[3]} (`lines` names 6 wrong lines)"
    (only,) = put(content.replace(b"{broken", b"", 1).split(b"\n" + wrong[7][0])[0] + b"\n{").json()["error"][
        "lines"
    ]
    assert (only["line"], "line 1" in only["message"]) == (7, False)


def test_a_hundred_wrong_lines_are_told_at_once(put: Put) -> None:
    answer = put(b"{}\n" * 150)
    assert [one["line"] for one in answer.json()["error"]["lines"]] == list(range(1, 101))


def test_what_is_told_of_a_line_is_short(put: Put) -> None:
    wrong = line("a", **{"x" * 1500: 1}) + line("b", body=body(model="m" * 1500))
    wrong += line("c", body=body(**{"y" * 1500: 1}))
    answer = put(wrong)
    assert len(answer.json()["error"]["lines"]) == 3
    assert len(answer.content) < 2000


def test_the_last_line_needs_no_end_and_a_mark_at_the_beginning_is_no_text(put: Put) -> None:
    assert put(b"\xef\xbb\xbf" + lines(3).rstrip()).status_code == 200


def test_packed_bytes_may_end_in_padding(put: Put) -> None:
    assert put(gzip.compress(lines(3)) + bytes(512)).status_code == 200


@pytest.mark.parametrize("content", [lines(301), b" " * 100_001, gzip.compress((b" " * 1999 + b"\n") * 1500)])
def test_limits_hold(config: Settings, put: Put, content: bytes) -> None:
    answer = put(content)
    assert answer.status_code in {400, 413}, answer.text
    assert re.search("limit of 300 requests|limit of 100000 bytes|limit of 2000 bytes", answer.text)
    assert blobs(config) == leftovers(config) == []


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"purpose": "batch_output"}, "purpose"),
        ({"wrong_lines": "skip"}, "wrong_lines"),
        ({"other": "x"}, "other"),
        ({"expires_after[anchor]": "created_at"}, "expires_after[seconds]"),
        ({"expires_after[anchor]": "now", "expires_after[seconds]": "7200"}, "expires_after[anchor]"),
        ({"expires_after[anchor]": "created_at", "expires_after[seconds]": "60"}, "expires_after[seconds]"),
        ({"purpose": "x" * 2000}, "purpose"),
    ],
)
def test_wrong_fields_are_named(put: Put, fields: dict[str, str], param: str) -> None:
    answer = put(lines(2), **fields)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text


@pytest.mark.parametrize(
    ("content_type", "content"),
    [
        ("application/json", b"{}"),
        ("multipart/form-data", b"--x"),
        ("multipart/form-data; boundary=x", b"--x\r\n"),
        ("multipart/form-data; boundary=x", b"nothing"),
        ("multipart/form-data; boundary=x", b"--x--\r\n"),
        ("multipart/form-data; boundary=x", b"--x\r\n\r\nno name\r\n--x--\r\n"),
    ],
)
def test_what_is_no_form_is_refused(client: TestClient, content_type: str, content: bytes) -> None:
    answer = client.post("/v1/files", content=content, headers={"content-type": content_type})
    assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error"), answer.text


@pytest.mark.parametrize(
    ("codec", "status", "filename"),
    [("unicode_escape", 200, "a?.jsonl"), ("idna", 400, None)],
)
def test_a_filename_is_text_whatever_codec_it_names(
    client: TestClient, codec: str, status: int, filename: str | None
) -> None:
    """RFC 2231 lets the sender name one, and Python has some that make half characters, or fail."""
    head = f"content-disposition: form-data; name=file; filename*={codec}''a%5Cud800.jsonl\r\n\r\n"
    content = b"--x\r\ncontent-disposition: form-data; name=purpose\r\n\r\nbatch\r\n--x\r\n" + head.encode()
    content += lines(1) + b"\r\n--x--\r\n"
    answer = client.post(
        "/v1/files", content=content, headers={"content-type": "multipart/form-data; boundary=x"}
    )
    assert answer.status_code == status, answer.text
    assert answer.json().get("filename") == filename


def test_an_upload_that_breaks_off_leaves_nothing(client: TestClient, config: Settings, store: Store) -> None:
    def broken() -> Iterator[bytes]:
        yield b'--x\r\ncontent-disposition: form-data; name="file"; filename="f"\r\n\r\n'
        yield lines(20)

    answer = client.post(
        "/v1/files", content=broken(), headers={"content-type": "multipart/form-data; boundary=x"}
    )
    assert answer.status_code == 400
    assert blobs(config) == leftovers(config) == []
    with store.transaction() as session:
        assert session.scalar(text("SELECT count(*) FROM files")) == 0


def test_a_client_that_goes_away_is_no_error_of_ours() -> None:
    pieces = iter(({"type": "http.request", "body": b"--x", "more_body": True}, {"type": "http.disconnect"}))

    async def receive() -> dict[str, object]:
        return next(pieces)

    scope = {"type": "http", "headers": [(b"content-type", b"multipart/form-data; boundary=x")]}
    reading = partial(
        read_form,
        HttpRequest(scope, receive),
        file_field="file",
        open_sink=lambda _: lambda _: iter(()),
        give_way=Traffic().give_way,
    )
    with pytest.raises(ClientGoneError):
        anyio.run(reading)


@pytest.mark.parametrize(
    ("wanted", "status", "start", "end"),
    [
        ("bytes=0-9", 206, 0, 10),
        ("bytes=5-", 206, 5, None),
        ("bytes=-4", 206, -4, None),
        ("bytes=3-99999999", 206, 3, None),
        ("lines=1-2", 200, 0, None),
        ("bytes=99999999-", 416, 0, 0),
        ("bytes=-0", 416, 0, 0),
    ],
)
def test_a_part_of_a_file_can_be_read(
    client: TestClient, put: Put, wanted: str, status: int, start: int, end: int | None
) -> None:
    content = lines(3)
    file_id = put(content).json()["id"]
    answer = client.get(f"/v1/files/{file_id}/content", headers={"range": wanted})
    assert answer.status_code == status
    if status != 416:
        assert answer.content == content[start:end]
        assert int(answer.headers["content-length"]) == len(answer.content)


def test_lists_go_page_by_page_both_ways(client: TestClient, put: Put) -> None:
    made = [put(lines(1)).json()["id"] for _ in range(5)]
    for order, expected in (("asc", made), ("desc", made[::-1])):
        seen, after = [], None
        while True:
            query = {"order": order, "limit": 2} | ({"after": after} if after else {})
            page = client.get("/v1/files", params=query).json()
            seen += [one["id"] for one in page["data"]]
            after = page["last_id"]
            if not page["has_more"]:
                break
        assert seen == expected
    assert client.get("/v1/files", params={"purpose": "batch_output"}).json()["data"] == []


def test_a_deleted_file_is_gone_and_its_blob_goes_when_nobody_names_it(
    client: TestClient, config: Settings, services: Services, put: Put
) -> None:
    first, second = (put(lines(2)).json()["id"] for _ in "ab")
    for path in (config.data_dir / "blobs").glob("??/*"):
        os.utime(path, (LONG_AGO, LONG_AGO))
    assert client.delete(f"/v1/files/{first}").json()["deleted"] is True
    assert client.get(f"/v1/files/{first}").status_code == 404
    assert client.delete(f"/v1/files/{first}").status_code == 404
    tidy(services)
    assert len(blobs(config)) == 1
    client.delete(f"/v1/files/{second}")
    tidy(services)
    assert blobs(config) == []


def test_the_sweep_spares_what_is_about_to_be_named(config: Settings, services: Services, put: Put) -> None:
    put(b"{}")
    young = config.data_dir / "young"
    young.write_bytes(b"young")
    services.blobs.keep(young, "a" * 64)
    tidy(services)
    assert blobs(config) == ["a" * 64]


def test_a_file_whose_time_is_over_is_gone(
    client: TestClient, store: Store, services: Services, put: Put
) -> None:
    fields = {"expires_after[anchor]": "created_at", "expires_after[seconds]": "3600"}
    made = put(lines(1), **fields).json()
    assert made["expires_at"] == made["created_at"] + 3600
    with store.transaction() as session:
        session.execute(text("UPDATE files SET expires_at = now()"))
    assert client.get(f"/v1/files/{made['id']}").status_code == 404
    tidy(services)
    with store.transaction() as session:
        assert session.scalar(text("SELECT count(*) FROM files")) == 0


def test_a_full_disk_accepts_nothing_and_says_so(
    services: Services, store: Store, put: Put, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise StorageError("no space left")

    monkeypatch.setattr(services.blobs, "keep", full)
    answer = put(lines(2))
    assert answer.status_code == 503
    assert answer.headers["retry-after"]
    with store.transaction() as session:
        assert session.scalar(text("SELECT count(*) FROM files")) == 0


@pytest.mark.parametrize("count", [1, 200])
def test_a_disk_that_takes_no_byte_of_an_upload_accepts_nothing(
    put: Put, config: Settings, count: int
) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        answer = put(lines(count))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (answer.status_code, answer.json()["error"]["type"]) == (503, "service_unavailable")
    assert blobs(config) == leftovers(config) == []


def test_of_two_rows_for_one_blob_the_lock_makes_one_wait(store: Store) -> None:
    with store.transaction() as first, store.transaction() as second:
        files.lock_blob(first, "b" * 64)
        second.execute(text("SET LOCAL lock_timeout = '100ms'"))
        with pytest.raises(Exception, match="lock timeout"):
            files.lock_blob(second, "b" * 64)
        second.rollback()
    assert timedelta(minutes=10) < files.ORPHAN_AFTER
