import socket
import struct
import threading
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from ipaddress import ip_network

import pytest
from standardwebhooks import Webhook

from tests.fixtures.receiver import receiver
from worker.values.results import MadeCall
from worker.webhooks import tool_calls
from worker.webhooks.sender import Answer, send
from worker.webhooks.signing import new_secret
from worker.webhooks.targets import Targets
from worker.webhooks.tool_calls import CallStop, NewCall, ToolCaller

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


OK = b"HTTP/1.1 200 OK\r\n"


@contextmanager
def talking(*, first: bytes = b"", again: bytes = b"", pause: float = 0) -> Iterator[str]:
    """Run a receiver that takes the request, says something once, and then something else for ever."""
    stop = threading.Event()

    def serve() -> None:
        try:
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(first)
                while again and not stop.wait(pause):
                    connection.sendall(again)
                stop.wait()
        except OSError:
            return

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}/"
        stop.set()
        server.shutdown(socket.SHUT_RDWR)  # a sender whose time was over too early has never connected
        thread.join(30)
        assert not thread.is_alive()


HOSTILE = {
    "says nothing": {},
    "drips a status line": {"again": b"H", "pause": 0.02},
    "drips a header": {"first": OK, "again": b"X", "pause": 0.02},
    "drips headers": {"first": OK, "again": b"x: y\r\n", "pause": 0.02},
    "drips informational answers": {"again": b"HTTP/1.1 103 Early Hints\r\n\r\n", "pause": 0.02},
    "one header without end": {"first": OK + b"x: ", "again": b"x" * 65536},
    "headers without end": {"first": OK, "again": b"x: y\r\n" * 8192},
    "informational answers without end": {"again": b"HTTP/1.1 103 Early Hints\r\n\r\n" * 2048},
    "a status line without end": {"again": b"x" * 65536},
    "is no HTTP": {"first": b"SSH-2.0-OpenSSH_9.9\r\n"},
    "two lengths": {"first": OK + b"content-length: 1\r\ncontent-length: 2\r\n\r\nab"},
}


@pytest.mark.parametrize("behaviour", HOSTILE.values(), ids=list(HOSTILE))
def test_a_hostile_receiver_costs_bounded_time_and_memory(behaviour: dict) -> None:
    with talking(**behaviour) as url:
        tracemalloc.start()
        started = time.monotonic()
        answer = post(url, seconds=0.4)
        seconds = time.monotonic() - started
        _, peak_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert (answer.status_code, bool(answer.error)) == (None, True)
    assert seconds < 10
    assert peak_bytes < 8 << 20


CHUNKED = OK + b"transfer-encoding: chunked\r\n\r\n"
SAID_YES = {
    "drips a body": {"first": OK + b"content-length: 1000\r\n\r\n", "again": b"x", "pause": 0.02},
    "a body without end": {"first": OK + b"content-length: 1000000000\r\n\r\n", "again": b"x" * 65536},
    "chunks without end": {"first": CHUNKED, "again": b"1000\r\n" + b"x" * 4096 + b"\r\n"},
    "a chunk extension without end": {"first": CHUNKED + b"1;", "again": b"x" * 65536},
    "a claim of gzip": {
        "first": OK + b"content-encoding: gzip\r\ncontent-length: 9999999\r\n\r\n",
        "again": b"\x1f\x8b" * 32768,
    },
}


@pytest.mark.parametrize("behaviour", SAID_YES.values(), ids=list(SAID_YES))
def test_what_follows_a_yes_changes_nothing_and_is_not_waited_for(behaviour: dict) -> None:
    with talking(**behaviour) as url:
        tracemalloc.start()
        started = time.monotonic()
        assert post(url, seconds=2).is_delivered
        assert time.monotonic() - started < 10
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
        tracemalloc.stop()


ALL_HOSTILE = HOSTILE | SAID_YES


@pytest.mark.parametrize("behaviour", ALL_HOSTILE.values(), ids=list(ALL_HOSTILE))
def test_a_hostile_tool_endpoint_costs_bounded_time_and_memory(
    behaviour: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it says is the model's answer, so all of it is waited for: within the time, up to the limit."""
    monkeypatch.setattr(tool_calls, "WAITS", ())
    caller = ToolCaller([SECRET], Targets(LOOPBACK), 1)
    with talking(**behaviour) as url:
        tracemalloc.start()
        started = time.monotonic()
        new = NewCall(url, "key", {}, timeout_seconds=0.4, seconds_left=30)
        made = caller.make(MadeCall("call_1", "f", "{}"), new, CallStop())
        seconds = time.monotonic() - started
        _, peak_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert (made.answer, made.attempts, bool(made.error)) == (None, 1, True)
    assert seconds < 10
    assert peak_bytes < 8 << 20


def test_a_reset_is_an_answer_too() -> None:
    def reset(server: socket.socket) -> None:
        connection, _ = server.accept()
        connection.recv(10)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=reset, args=(server,))
        thread.start()
        answer = post(f"http://127.0.0.1:{server.getsockname()[1]}/")
        thread.join(30)
    assert "Error" in (answer.error or "")


def test_a_receiver_that_accepts_nobody_costs_bounded_time() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server:
        address = server.getsockname()
        with ExitStack() as stack:
            for _ in range(4):  # fill the backlog: who comes next gets no answer at all
                waiting = stack.enter_context(socket.socket())
                waiting.setblocking(False)
                waiting.connect_ex(address)
            started = time.monotonic()
            answer = post(f"http://127.0.0.1:{address[1]}/", seconds=1)
    assert answer.error is not None
    assert time.monotonic() - started < 10


def test_a_name_server_that_hangs_costs_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()

    def hang(*_: object, **__: object) -> list[tuple]:
        release.wait(60)
        raise socket.gaierror("too late")

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    started = time.monotonic()
    answer = post("http://slow.example/", seconds=0.5)
    assert time.monotonic() - started < 10
    release.set()
    assert answer.error == "no answer within 0.5 s"


def retry_after(value: str) -> float | None:
    with receiver((503, {"retry-after": value})) as hook:
        return post(hook.url).retry_after


@pytest.mark.parametrize("seconds", [17, 0])
def test_retry_after_is_a_number(seconds: int) -> None:
    assert retry_after(str(seconds)) == seconds


@pytest.mark.parametrize(("hours", "least", "most"), [(1, 3000, 3600), (-1, 0, 0)])
def test_retry_after_is_a_date(hours: int, least: float, most: float) -> None:
    seconds = retry_after(format_datetime(datetime.now(UTC) + timedelta(hours=hours), usegmt=True))
    assert seconds is not None
    assert least <= seconds <= most


@pytest.mark.parametrize(
    "value",
    ["soon", "-1", "1e9", "9" * 400, "Thu, 99 Foo 2026 00:00:00 GMT", "1 Jan 2026 00:00:00 +99999999999", ""],
)
def test_a_senseless_retry_after_is_ignored(value: str) -> None:
    with receiver((503, {"retry-after": value})) as hook:
        answer = post(hook.url)
    assert (answer.status_code, answer.retry_after) == (503, None)


def test_an_answer_is_asked_for_uncompressed() -> None:
    with receiver() as hook:
        post(hook.url)
        assert hook.calls[0][0]["accept-encoding"] == "identity"


def test_every_secret_signs() -> None:
    old, new = new_secret(), new_secret()
    with receiver() as hook:
        send(
            hook.url,
            event_id="evt_1",
            body="{}",
            secrets=[new, old],
            timeout_seconds=5,
            targets=Targets(LOOPBACK),
        )
        headers, body = hook.calls[0]
    assert headers["webhook-signature"].count("v1,") == 2
    for secret in (old, new):
        Webhook(secret).verify(body, headers)


def test_nobody_there_is_an_answer_too() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert "ConnectError" in (post(f"http://127.0.0.1:{port}/").error or "")
