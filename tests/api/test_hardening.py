"""What a client that means harm gets, short of a key."""

import json
import logging
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import uvicorn
from fastapi.testclient import TestClient

from api.guards import slow_clients
from api.guards.slow_clients import ImpatientProtocol
from api.inputs import formats
from api.main import create_app
from tests.fixtures.access import bearer, make_key
from worker.settings import Settings
from worker.store.database.session import Store
from worker.values.grammar import MAX_SOURCE_CHARACTERS


def schema_of(schema: dict) -> dict:
    return {"type": "json_schema", "json_schema": {"schema": schema}}


@contextmanager
def serving(config: Settings) -> Iterator[int]:
    server = uvicorn.Server(
        uvicorn.Config(create_app(config), port=0, log_config=None, http=ImpatientProtocol)
    )
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()


@pytest.mark.parametrize("sent", [b"", b"GET /health HTT", b"GET /health HTTP/1.1\r\nhost: localhost\r\nx: "])
def test_headers_that_do_not_come_close_the_connection(
    store: Store,  # noqa: ARG001
    config: Settings,
    monkeypatch: pytest.MonkeyPatch,
    sent: bytes,
) -> None:
    monkeypatch.setattr(slow_clients, "HEAD_SECONDS", 0.3)
    with serving(config) as port, socket.create_connection(("127.0.0.1", port), timeout=60) as client:
        client.sendall(sent)
        assert client.recv(1000) == b""


def test_a_second_request_has_its_own_time(
    store: Store,  # noqa: ARG001
    config: Settings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(slow_clients, "HEAD_SECONDS", 1.0)
    with serving(config) as port, socket.create_connection(("127.0.0.1", port), timeout=60) as client:
        for _ in range(2):
            client.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
            answer = b""
            while not answer.endswith(b"}"):
                answer += client.recv(4000)
            assert b"200 OK" in answer
        client.sendall(b"GET /hea")
        assert client.recv(1000) == b""


def test_a_body_that_drips_is_answered_408(
    store: Store,  # noqa: ARG001
    config: Settings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(slow_clients, "BODY_SECONDS", 0.3)
    head = b"POST /v1/batch/async HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    with serving(config) as port, socket.create_connection(("127.0.0.1", port), timeout=60) as client:
        client.sendall(head + b'content-length: 1000\r\n\r\n{"prom')
        answer = b""
        while b"too slowly" not in answer and (received := client.recv(4000)):
            answer += received
    assert b" 408 " in answer.splitlines()[0]
    assert b"too slowly" in answer


def test_what_is_no_http_is_not_logged_as_our_error(
    store: Store,  # noqa: ARG001
    config: Settings,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The server has answered 400 already when the application refuses the length."""
    head = b"POST /v1/batch/async HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n"
    sent = head + b"content-length: 1000000000000\r\n\r\nno chunk\r\n"
    with serving(config) as port, socket.create_connection(("127.0.0.1", port), timeout=60) as client:
        client.sendall(sent)
        answer = b""
        while received := client.recv(4000):
            answer += received
    assert b" 400 " in answer.splitlines()[0]
    assert "unexpected error" not in caplog.text
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize(
    "body", ["[" * 100_000, '{"a":' * 100_000, '{"prompts":' + "[" * 9000 + "]" * 9000 + "}"]
)
def test_deep_nesting_is_refused(client: TestClient, body: str) -> None:
    answer = client.post("/v1/batch/async", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400
    assert "nested too deeply" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"completion_window": "24h\n"}, "completion_window"),
        ({"deadline": 1_900_000_000}, "deadline"),
        ({"response_format": schema_of({"const": "\x00"})}, "response_format.json_schema.schema"),
        ({"response_format": schema_of({"\ud800": 1})}, "response_format.json_schema.schema"),
        (
            {"response_format": schema_of({"const": float("nan")})},
            "response_format.json_schema.schema",
        ),
    ],
)
def test_what_cannot_be_kept_is_refused_at_the_door(client: TestClient, fields: dict, param: str) -> None:
    body = json.dumps({"prompts": ["fox"], **fields})
    answer = client.post("/v1/batch/async", content=body, headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (422, param), answer.text


def test_a_grammar_that_is_too_long_is_not_kept_in_memory(client: TestClient) -> None:
    formats._compile_problem.cache_clear()
    for schema in ({"const": "x" * MAX_SOURCE_CHARACTERS}, {"const": "x"}):
        body = {"prompts": ["fox"], "response_format": schema_of(schema)}
        answer = client.post("/v1/batch/async", json=body)
        assert answer.status_code == (202 if len(schema["const"]) == 1 else 422)
    assert "larger than the limit" not in answer.text
    assert formats._compile_problem.cache_info().currsize == 1


def test_browsers_are_told_what_not_to_do(client: TestClient) -> None:
    for path in ("/health", "/v1/batch/stats", "/v1/none", "/docs"):
        headers = client.get(path).headers
        assert headers["x-content-type-options"] == "nosniff", path
        assert headers["x-frame-options"] == "DENY"
        assert "default-src 'none'" in headers["content-security-policy"]


def test_the_audit_log_is_for_administrators(store: Store, config: Settings) -> None:
    from worker.contract.access import Scope
    from worker.store.tenants import audit

    admin, user = make_key(store, scopes=(Scope.DEPLOYMENT,)), make_key(store)
    with store.transaction() as session:
        for number in range(3):
            audit.record(session, "shell:me", "key.revoke", f"hr_{number}", {"n": number}, tenant_id="x")
            session.flush()
    with TestClient(create_app(config.model_copy(update={"auth": "keys"}))) as client:
        assert client.get("/v1/audit", headers=bearer(user)).status_code == 403
        page = client.get("/v1/audit?limit=2", headers=bearer(admin)).json()
        assert [entry["target"] for entry in page["data"]] == ["hr_2", "hr_1"]
        rest = client.get(f"/v1/audit?limit=2&before={page['next']}", headers=bearer(admin)).json()
        assert ([entry["details"] for entry in rest["data"]], rest["next"]) == ([{"n": 0}], None)


def test_no_secret_reaches_a_log(store: Store, config: Settings, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever goes wrong, keys, passwords and prompts are not in what is written about it."""
    caplog.set_level(logging.DEBUG)
    key = make_key(store)
    password = "s3cret-passw0rd"
    away = config.model_copy(
        update={
            "auth": "keys",
            "database_url": f"postgresql+psycopg://user:{password}@127.0.0.1:1/none",
            "redis_url": f"redis://:{password}@127.0.0.1:1/0",
        }
    )
    body = {"prompts": ["a prompt of mine"], "callback_url": "nonsense"}
    for served in (config.model_copy(update={"auth": "keys"}), away):
        with TestClient(create_app(served), raise_server_exceptions=False) as client:
            for path in ("/v1/batch/stats", "/v1/batch/none", "/ready"):
                client.get(path, headers=bearer(key))
            client.post("/v1/batch/async", headers=bearer(key), json=body)
            client.post("/v1/batch/async", headers=bearer(key), json={"prompts": ["a prompt of mine"]})
    assert caplog.text
    for secret in (key, key.split("_", 2)[2], password, "a prompt of mine"):
        assert secret not in caplog.text
