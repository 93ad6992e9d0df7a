import socket
import threading
import time
from ipaddress import ip_network

import pytest
from standardwebhooks import Webhook

from tests.fixtures.receiver import receiver
from worker.webhooks.sender import Answer, send
from worker.webhooks.signing import new_secret
from worker.webhooks.targets import Targets

SECRET = new_secret()
LOOPBACK = (ip_network("127.0.0.0/8"),)


def post(url: str, *, allowed: tuple = LOOPBACK, seconds: float = 5) -> Answer:
    return send(
        url,
        event_id="evt_1",
        body='{"a":"ü"}',
        secrets=[SECRET],
        timeout_seconds=seconds,
        targets=Targets(allowed),
    )


def test_the_standard_library_for_webhooks_verifies_it() -> None:
    with receiver() as hook:
        assert post(hook.url).is_delivered
        headers, body = hook.calls[0]
    assert Webhook(SECRET).verify(body, headers) == {"a": "ü"}
    assert headers["webhook-id"] == "evt_1"
    with pytest.raises(Exception, match="No matching signature"):
        Webhook(new_secret()).verify(body, headers)


@pytest.mark.parametrize("status", [199 + 1, 204])
def test_only_2xx_is_delivered(status: int) -> None:
    with receiver((status, {})) as hook:
        assert post(hook.url).is_delivered


@pytest.mark.parametrize("status", [301, 302, 307, 400, 410, 500, 503])
def test_anything_else_is_not(status: int) -> None:
    with receiver((status, {"location": "http://127.0.0.1:1/", "retry-after": "17"})) as hook:
        answer = post(hook.url)
        assert len(hook.calls) == 1
    assert (answer.status_code, answer.is_delivered, answer.retry_after) == (status, False, 17.0)


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", "2130706433", "0x7f000001", "0177.0.0.1", "127.1"]
)
def test_loopback_is_not_reached_by_any_spelling(host: str) -> None:
    with receiver() as hook:
        answer = post(hook.url.replace("127.0.0.1", host), allowed=())
        assert hook.calls == []
    assert answer.status_code is None
    assert answer.error is not None


def test_a_name_that_answers_differently_the_second_time_gains_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Resolution happens once: what was checked is what is connected to."""
    lookups = []

    def resolve(host: str, port: int, *_: object, **__: object) -> list[tuple]:
        lookups.append(host)
        address = "127.0.0.1" if len(lookups) == 1 else "10.0.0.1"
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]

    with receiver() as hook:
        monkeypatch.setattr(socket, "getaddrinfo", resolve)
        answer = post(hook.url.replace("127.0.0.1", "rebind.example"))
    assert answer.is_delivered
    assert "rebind.example" in lookups


def test_one_bad_address_among_good_ones_is_enough_to_refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    def resolve(_: str, port: int, *__: object, **___: object) -> list[tuple]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (a, port)) for a in ("127.0.0.1", "10.0.0.1")]

    with receiver() as hook:
        monkeypatch.setattr(socket, "getaddrinfo", resolve)
        assert not post(hook.url.replace("127.0.0.1", "mixed.example")).is_delivered
        assert hook.calls == []


def drip(connection: socket.socket, stop: threading.Event) -> None:
    with connection:
        connection.recv(65536)
        connection.sendall(b"HTTP/1.1 200 OK\r\n")
        while not stop.wait(0.05):
            try:
                connection.sendall(b"X")
            except OSError:
                return


def test_a_receiver_that_drips_bytes_is_given_up_on() -> None:
    stop = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=lambda: drip(server.accept()[0], stop))
        thread.start()
        started = time.monotonic()
        answer = post(f"http://127.0.0.1:{server.getsockname()[1]}/", seconds=0.5)
        stop.set()
        thread.join()
    assert answer.error == "no answer within 0.5 s"
    assert time.monotonic() - started < 5


def test_an_endless_answer_is_not_read_to_the_end() -> None:
    def flood(server: socket.socket) -> None:
        connection, _ = server.accept()
        connection.recv(65536)
        try:
            connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000000\r\n\r\n")
            while True:
                connection.sendall(b"x" * 65536)
        except OSError:
            connection.close()

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=flood, args=(server,))
        thread.start()
        assert post(f"http://127.0.0.1:{server.getsockname()[1]}/").is_delivered
        thread.join(10)
        assert not thread.is_alive()


def test_nobody_there_is_an_answer_too() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert "ConnectError" in (post(f"http://127.0.0.1:{port}/").error or "")
