"""Ask for responses, and see what was stored."""

from collections.abc import Callable
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import text

from worker.settings import Settings
from worker.store.database.session import Store

Ask = Callable[..., Any]


@pytest.fixture
def ask(client: TestClient, config: Settings) -> Ask:
    """POST a body and return what came; the text is `hello` unless another is given."""

    def post(**fields: Any) -> Any:
        return client.post("/v1/responses", json={"model": config.model.name, "input": "hello"} | fields)

    return post


def prompts(store: Store) -> list[str]:
    with store.transaction() as session:
        return list(session.scalars(text("SELECT prompt FROM requests ORDER BY id")))
