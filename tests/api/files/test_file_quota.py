"""How many bytes of files a tenant may have: nothing is kept of what would be too much."""

import gzip
from collections.abc import Callable

import pytest
from fastapi.testclient import TestClient
from httpx import Response

from api.files.reading import BatchReader
from api.files.writing import ResultWriter
from tests.fixtures.batches import claim, run_to_the_end
from tests.fixtures.inputs import lines
from worker.settings import Settings
from worker.store.database.session import Store
from worker.store.tenants import tenants

Put = Callable[..., Response]
CONTENT = lines(20)


def limit(store: Store, num_bytes: int | None) -> None:
    with store.transaction() as session:
        tenants.create(session, "default")
        tenants.change(session, "default", {"max_file_bytes": num_bytes})


def refused(answer: Response) -> bool:
    return answer.status_code == 429 and answer.json()["error"]["code"] == "quota_max_file_bytes"


def begin(client: TestClient, num_bytes: int) -> Response:
    body = {"purpose": "batch", "filename": "in.jsonl", "bytes": num_bytes, "mime_type": "text/jsonl"}
    return client.post("/v1/uploads", json=body)


@pytest.fixture(autouse=True)
def small(store: Store, client: TestClient) -> None:  # noqa: ARG001 - after the tables are emptied
    limit(store, len(CONTENT) * 3 // 2)


def test_a_file_over_the_quota_is_refused_until_there_is_room(
    client: TestClient, config: Settings, put: Put
) -> None:
    first = put(CONTENT)
    assert first.status_code == 200, first.text
    second = put(lines(21))
    assert refused(second), second.text
    assert second.headers["retry-after"]
    assert len(list((config.data_dir / "blobs").glob("??/*"))) == 1, "a refused file was kept"
    assert client.delete(f"/v1/files/{first.json()['id']}").status_code == 200
    assert put(lines(21)).status_code == 200


def test_what_is_larger_than_the_quota_is_not_worth_a_retry(put: Put) -> None:
    answer = put(lines(60))
    assert refused(answer)
    assert answer.headers["x-should-retry"] == "false"


def test_it_is_counted_unpacked(put: Put) -> None:
    assert refused(put(gzip.compress(lines(60))))


def test_an_upload_takes_its_room_when_it_is_announced(client: TestClient, put: Put) -> None:
    upload = begin(client, len(CONTENT)).json()
    assert refused(put(CONTENT))
    assert refused(begin(client, len(CONTENT)))
    part = client.post(f"/v1/uploads/{upload['id']}/parts", files={"data": ("blob", CONTENT)}).json()
    done = client.post(f"/v1/uploads/{upload['id']}/complete", json={"part_ids": [part["id"]]})
    assert done.status_code == 200, done.text
    assert refused(begin(client, len(CONTENT)))
    client.delete(f"/v1/files/{done.json()['file']['id']}")
    cancelled = begin(client, len(CONTENT)).json()
    client.post(f"/v1/uploads/{cancelled['id']}/cancel")
    assert put(CONTENT).status_code == 200


def test_an_upload_that_is_larger_unpacked_needs_room_for_that(client: TestClient) -> None:
    packed = gzip.compress(lines(60))
    upload = begin(client, len(packed)).json()
    part = client.post(f"/v1/uploads/{upload['id']}/parts", files={"data": ("blob", packed)}).json()
    assert refused(client.post(f"/v1/uploads/{upload['id']}/complete", json={"part_ids": [part["id"]]}))


def test_results_are_written_whatever_the_quota(
    client: TestClient, store: Store, put: Put, reader: BatchReader, writer: ResultWriter
) -> None:
    file = put(CONTENT).json()
    body = {"input_file_id": file["id"], "endpoint": "/v1/completions", "completion_window": "24h"}
    batch = client.post("/v1/batches", json=body)
    assert batch.status_code == 200, batch.text
    limit(store, 1)
    while reader.turn():
        pass
    for shard_id in range(1, 100):
        if (held := claim(store, shard_id)) is not None:
            run_to_the_end(store, held)
    while writer.turn():
        pass
    found = client.get(f"/v1/batches/{batch.json()['id']}").json()
    assert found["output_file_id"], found
    assert refused(put(CONTENT))
