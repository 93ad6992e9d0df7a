"""Conversations of the plain API whose model reasons, and a model that has several names."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import text

from api.main import create_app
from tests.fixtures.checkpoint import TEMPLATE, write_checkpoint
from worker.settings import Settings
from worker.store.database.session import Store

SWITCH = "{% if enable_thinking is defined and not enable_thinking %}</think>{% else %}<think>{% endif %}"
HELLO = [{"role": "user", "content": "hi"}]


@pytest.fixture
def client(store: Store, config: Settings, tmp_path: Path) -> Iterator[TestClient]:  # noqa: ARG001 - empties
    directory = tmp_path / "thinker"
    directory.mkdir()
    write_checkpoint(directory, chat_template=TEMPLATE + SWITCH)
    changed = config.model_copy(update={"model": directory, "model_aliases": {"gpt-4o": "thinker"}})
    with TestClient(create_app(changed), raise_server_exceptions=False) as client:
        yield client


def test_requests_keep_how_they_reason(client: TestClient, store: Store) -> None:
    requests: list[dict[str, Any]] = [
        {"messages": HELLO, "thinking_budget": 7, "max_tokens": 9},
        {"messages": HELLO, "enable_thinking": False, "max_tokens": 9},
        {"messages": HELLO, "kind": "embedding"},
        {"prompt": "hi", "max_tokens": 9},
    ]
    answer = client.post("/v1/batch/async", json={"requests": requests})
    assert answer.status_code == 202, answer.text
    with store.transaction() as session:
        rows = session.execute(text("SELECT kind, prompt, params FROM requests ORDER BY position")).all()
    assert [row.kind for row in rows] == ["generation", "generation", "embedding", "generation"]
    assert [row.prompt[-8:] for row in rows[:3]] == ["><think>", "</think>", "><think>"]
    assert rows[0].params["thinking_budget"] == 7
    assert rows[0].params["parsing"]["thinking"] == {"style": "tags", "is_open": True}
    assert all("parsing" not in row.params for row in rows[1:])


@pytest.mark.parametrize("field", ["thinking_budget", "reasoning_effort"])
def test_a_prompt_without_a_template_has_no_wishes(client: TestClient, field: str) -> None:
    value = {"thinking_budget": 7, "reasoning_effort": "low"}[field]
    answer = client.post("/v1/batch/async", json={"requests": [{"prompt": "hi", field: value}]})
    assert answer.status_code == 422
    assert f"must have messages to have {field}" in answer.json()["error"]["message"]


def test_a_model_is_listed_by_each_of_its_names(client: TestClient) -> None:
    assert [one["id"] for one in client.get("/v1/models").json()["data"]] == ["thinker", "gpt-4o"]
    assert client.get("/v1/models/gpt-4o").json()["id"] == "gpt-4o"
    assert client.get("/v1/models/gpt-5").status_code == 404
