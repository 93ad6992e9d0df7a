"""Every request has an id, which its answer and all lines that it causes carry."""

import json
import logging
import re
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient

from worker.store.batches import batches
from worker.telemetry import JsonFormatter


class Lines(logging.Handler):
    """Keeps what is logged, as the objects that a program reads."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(JsonFormatter())
        self.lines: list[dict[str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(json.loads(self.format(record)))


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Iterator[list[dict[str, Any]]]:
    handler = Lines()
    caplog.set_level(logging.DEBUG, "headrace")
    logging.getLogger("headrace").addHandler(handler)
    yield handler.lines
    logging.getLogger("headrace").removeHandler(handler)


def test_one_id_links_the_request_its_batch_and_its_answer(
    client: TestClient, lines: list[dict[str, Any]]
) -> None:
    body, headers = {"prompts": ["a private text"]}, {"X-Request-ID": "mine-1"}
    answer = client.post("/v1/batch/async?token=secret", json=body, headers=headers)
    assert answer.headers["x-request-id"] == "mine-1"
    accepted, request = lines
    assert accepted["message"] == "batch accepted"
    assert accepted["batch"] == answer.json()["batch_id"]
    assert accepted["request_id"] == request["request_id"] == "mine-1"
    assert (request["method"], request["path"], request["status"]) == ("POST", "/v1/batch/async", 202)
    assert request["tenant"] == "default"
    assert request["ms"] > 0
    assert not re.search("secret|private", json.dumps(lines))


@pytest.mark.parametrize("given", ["", "two words", "a" * 129, 'a"b', "é"])
def test_an_id_that_is_no_plain_word_is_replaced(
    client: TestClient, lines: list[dict[str, Any]], given: str
) -> None:
    answer = client.get("/v1/batch/none", headers={b"X-Request-ID": given.encode()})
    assert answer.status_code == 404
    assert re.fullmatch("[0-9a-f]{32}", answer.headers["x-request-id"])
    assert lines[-1]["request_id"] == answer.headers["x-request-id"]
    assert lines[-1]["status"] == 404


def test_an_error_of_ours_has_it_too(
    client: TestClient, lines: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> bool:
        raise ZeroDivisionError

    monkeypatch.setattr(batches, "cancel", fail)
    answer = client.post("/v1/batch/batch_1/cancel", headers={"X-Request-ID": "mine-2"})
    assert (answer.status_code, answer.headers["x-request-id"]) == (500, "mine-2")
    by_message = {line["message"]: line for line in lines}
    assert by_message["request"]["status"] == 500
    assert "ZeroDivisionError" in by_message["unexpected error"]["exception"]
    assert {line["request_id"] for line in by_message.values()} == {"mine-2"}


def test_probes_are_told_at_debug(client: TestClient, lines: list[dict[str, Any]]) -> None:
    client.get("/health")
    assert [line["level"] for line in lines] == ["debug"]
