import hashlib
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import text

from api.dependencies import Services
from api.files.tidying import tidy
from tests.fixtures.inputs import lines
from worker.settings import Settings
from worker.store.database.session import Store


def begin(client: TestClient, num_bytes: int, **changes: object) -> str:
    body = {"purpose": "batch", "filename": "in.jsonl", "bytes": num_bytes, "mime_type": "text/jsonl"}
    answer = client.post("/v1/uploads", json=body | changes)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["id"])


def add(client: TestClient, upload_id: str, data: bytes) -> str:
    answer = client.post(f"/v1/uploads/{upload_id}/parts", files={"data": ("blob", data)})
    assert answer.status_code == 200, answer.text
    return str(answer.json()["id"])


def test_parts_are_put_together_in_the_order_asked_for(client: TestClient) -> None:
    content = lines(40)
    upload_id = begin(client, len(content), expires_after={"anchor": "created_at", "seconds": 7200})
    last, first = add(client, upload_id, content[1000:]), add(client, upload_id, content[:1000])
    body = {"part_ids": [first, last], "md5": hashlib.md5(content).hexdigest()}
    done = client.post(f"/v1/uploads/{upload_id}/complete", json=body).json()
    assert done["status"] == "completed"
    assert client.get(f"/v1/files/{done['file']['id']}/content").content == content
    assert done["file"]["expires_at"] == done["file"]["created_at"] + 7200
    again = client.post(f"/v1/uploads/{upload_id}/complete", json=body).json()  # a client's retry
    assert again == done


def test_what_was_not_announced_is_refused(client: TestClient) -> None:
    content = lines(4)
    upload_id = begin(client, len(content))
    part = add(client, upload_id, content)
    path = f"/v1/uploads/{upload_id}/complete"
    for body, param in (
        ({"part_ids": [part, part]}, "part_ids"),
        ({"part_ids": ["part_other"]}, "part_ids[0]"),
        ({"part_ids": []}, "part_ids"),
        ({"part_ids": [part], "md5": "0" * 32}, "md5"),
    ):
        answer = client.post(path, json=body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text
    short = begin(client, len(content) + 1)
    answer = client.post(f"/v1/uploads/{short}/complete", json={"part_ids": [add(client, short, content)]})
    assert answer.json()["error"]["param"] == "part_ids"
    assert client.post(path, json={"part_ids": [part]}).json()["status"] == "completed"


def test_wrong_lines_are_found_across_parts(client: TestClient) -> None:
    content = lines(4) + b"{}\n{"
    upload_id = begin(client, len(content))
    parts = [add(client, upload_id, content[i : i + 100]) for i in range(0, len(content), 100)]
    answer = client.post(f"/v1/uploads/{upload_id}/complete", json={"part_ids": parts})
    assert answer.status_code == 400
    assert [one["line"] for one in answer.json()["error"]["lines"]] == [5, 6]


def test_too_much_is_refused(client: TestClient) -> None:
    body = {"purpose": "batch", "filename": "x", "bytes": 100_001, "mime_type": "x"}
    assert client.post("/v1/uploads", json=body).status_code == 413
    upload_id = begin(client, 10)
    add(client, upload_id, b"0123456789")
    add(client, upload_id, b"0123456789")  # sent again
    answer = client.post(f"/v1/uploads/{upload_id}/parts", files={"data": ("blob", b"x")})
    assert answer.status_code == 413


@pytest.mark.parametrize("how", ["cancelled", "completed", "expired"])
def test_an_upload_that_is_over_takes_nothing(
    client: TestClient, store: Store, services: Services, config: Settings, how: str
) -> None:
    content = lines(2)
    upload_id = begin(client, len(content))
    part = add(client, upload_id, content)
    path = f"/v1/uploads/{upload_id}"
    if how == "cancelled":
        assert client.post(f"{path}/cancel").json()["status"] == "cancelled"
        assert client.post(f"{path}/cancel").json()["status"] == "cancelled"
    elif how == "completed":
        client.post(f"{path}/complete", json={"part_ids": [part]})
    else:
        with store.transaction() as session:
            session.execute(text("UPDATE uploads SET expires_at = now()"))
        tidy(services)
    answer = client.post(f"{path}/parts", files={"data": ("blob", content)})
    assert (answer.status_code, answer.headers["x-should-retry"]) == (409, "false")
    assert how in answer.json()["error"]["message"]
    with store.transaction() as session:
        assert session.scalar(text("SELECT count(*) FROM upload_parts")) == 0
    assert list(Path(config.data_dir / "incoming").glob("*")) == []


def test_an_unknown_upload_is_not_found(client: TestClient) -> None:
    assert client.post("/v1/uploads/upload_x/parts", files={"data": ("b", b"x")}).status_code == 404
    assert client.post("/v1/uploads/upload_x/complete", json={"part_ids": ["p"]}).status_code == 404
    assert client.post("/v1/uploads/upload_x/cancel").status_code == 404
