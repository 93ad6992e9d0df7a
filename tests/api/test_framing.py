"""A request whose end two readers could find in different places is refused, with whatever is behind it."""

import socket
from collections.abc import Iterator

import pytest

from tests.fixtures.access import bearer, make_key
from tests.fixtures.api_process import ApiProcess, api_process
from tests.fixtures.checkpoint import write_checkpoint
from worker.store.database.session import Store

HOST = b"Host: localhost\r\n"
HIDDEN = b"GET /health HTTP/1.1\r\n" + HOST + b"\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"
POST = b"POST /v1/batch/estimate HTTP/1.1\r\n" + HOST
AMBIGUOUS = {
    "a length and chunks": POST + CHUNKED + b"Content-Length: 5\r\n\r\n0\r\n\r\n",
    "chunks and a length": POST + b"Content-Length: 5\r\n" + CHUNKED + b"\r\n0\r\n\r\n",
    "chunks and no length": POST + CHUNKED + b"Content-Length: 0\r\n\r\n0\r\n\r\n",
    "two lengths": POST + b"Content-Length: 5\r\nContent-Length: 0\r\n\r\n",
    "two lengths in one header": POST + b"Content-Length: 5, 0\r\n\r\n",
    "a length with a sign": POST + b"Content-Length: +0\r\n\r\n",
    "a second coding": POST + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "two codings": POST + CHUNKED + b"Transfer-Encoding: identity\r\n\r\n0\r\n\r\n",
    "an unknown coding": POST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "a space before the colon": POST + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
    "a tab in the coding": POST + b"Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
    "chunks in HTTP/1.0": POST.replace(b"1.1", b"1.0")
    + b"Connection: keep-alive\r\n"
    + CHUNKED
    + b"\r\n0\r\n\r\n",
    "a continued header": POST + b"X: 1\r\n Content-Length: 5\r\nContent-Length: 0\r\n\r\n",
    "a continued coding": POST + b"Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n",
    "a bare line feed": POST + b"X: 1\nContent-Length: 0\r\n\r\n",
    "a bare line feed at the end": POST + b"Content-Length: 0\r\n\n",
    "only line feeds": (POST + b"Content-Length: 0\r\n\r\n").replace(b"\r\n", b"\n"),
    "a bare carriage return": POST + b"X: 1\rContent-Length: 0\r\n\r\n",
    "a trailer with a bare line feed": POST + CHUNKED + b"\r\n0\r\nX: 1\n\r\n",
    "a chunk with a sign": POST + CHUNKED + b"\r\n+0\r\n\r\n",
    "a chunk that ends with a line feed": POST + CHUNKED + b"\r\n2\n{}\r\n0\r\n\r\n",
}


@pytest.fixture(scope="module")
def api(database_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiProcess]:  # noqa: ARG001
    directory = tmp_path_factory.mktemp("api")
    with api_process(directory, write_checkpoint(directory)) as running:
        yield running


def answers(api: ApiProcess, sent: bytes) -> bytes:
    """Return what comes until the API closes the connection, or ten answers are there."""
    with socket.create_connection(("127.0.0.1", api.port), timeout=60) as client:
        client.sendall(sent)
        received = b""
        while received.count(b"HTTP/1.1 ") < 10 and (some := client.recv(65536)):
            received += some
    return received


@pytest.mark.parametrize("name", AMBIGUOUS)
def test_nothing_hides_in_a_request(api: ApiProcess, name: str) -> None:
    """The connection ends with the refusal, so that what is hidden is never answered."""
    found = answers(api, AMBIGUOUS[name] + HIDDEN * 10)
    assert found.count(b"HTTP/1.1 ") <= 2, found
    assert b" 200 OK" not in found
    assert b" 400 " in found
    assert b"connection: close" in found.lower()


def test_what_is_clear_is_answered_on_one_connection(api: ApiProcess, store: Store) -> None:
    key = f"Authorization: {bearer(make_key(store))['Authorization']}\r\n".encode()
    body = b'{"prompts": ["fox"]}'
    whole = POST + key + b"Content-Type: application/json\r\n"
    chunked = whole + CHUNKED + b"\r\n%x\r\n%s\r\n0\r\nX-Trailer: 1\r\n\r\n" % (len(body), body)
    sized = whole + b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
    found = answers(api, (chunked + sized + HIDDEN) * 4)
    assert found.count(b" 200 OK") >= 10, found
