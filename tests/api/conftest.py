from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from api.main import create_app
from tests.fixtures.checkpoint import TEMPLATE, write_checkpoint
from worker.settings import Settings
from worker.store.database.session import Store


@pytest.fixture
def config(tmp_path: Path) -> Settings:
    return Settings(
        model=write_checkpoint(tmp_path, chat_template=TEMPLATE),
        max_requests_per_batch=500,
        max_prompt_bytes=10_000,
        max_body_bytes=1_000_000,
        shard_size=2,
    )


@pytest.fixture
def client(store: Store, config: Settings) -> Iterator[TestClient]:  # noqa: ARG001 - empties the tables
    with TestClient(create_app(config), raise_server_exceptions=False) as client:
        yield client
