from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from fastapi.testclient import TestClient
from httpx import Response

from api.dependencies import Services
from api.files.reading import BatchReader
from api.files.writing import ResultWriter
from api.main import create_app
from tests.fixtures.checkpoint import TEMPLATE, write_checkpoint
from worker.settings import Settings
from worker.store.database.session import Store


@pytest.fixture
def config(tmp_path: Path) -> Settings:
    model = tmp_path / "served"
    model.mkdir()
    return Settings(
        model=write_checkpoint(model, chat_template=TEMPLATE),
        data_dir=tmp_path / "data",
        max_requests_per_batch=300,
        max_file_bytes=100_000,
        max_line_bytes=2_000,
        max_body_bytes=10_000,
        shard_size=2,
    )


@pytest.fixture
def client(store: Store, config: Settings) -> Iterator[TestClient]:  # noqa: ARG001 - empties the tables
    with TestClient(create_app(config), raise_server_exceptions=False) as client:
        yield client


@pytest.fixture
def services(client: TestClient) -> Services:
    found: Services = client.app.state.services  # type: ignore[attr-defined]
    return found


@pytest.fixture
def reader(services: Services) -> BatchReader:
    return BatchReader(services, Event())


@pytest.fixture
def writer(services: Services) -> ResultWriter:
    return ResultWriter(services, Event())


@pytest.fixture
def put(client: TestClient) -> Callable[..., Response]:
    def put(content: bytes, **fields: Any) -> Response:
        data = {"purpose": "batch"} | fields
        return client.post("/v1/files", data=data, files={"file": ("in.jsonl", content)})

    return put


@pytest.fixture
def create(client: TestClient, put: Callable[..., Response]) -> Callable[..., dict[str, Any]]:
    def create(content: bytes, *, headers: dict[str, str] | None = None, **changes: Any) -> dict[str, Any]:
        request = {"endpoint": "/v1/completions", "completion_window": "24h"} | changes
        if "input_file_id" not in request:
            request["input_file_id"] = put(content).json()["id"]
        answer = client.post("/v1/batches", json=request, headers=headers)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    return create
