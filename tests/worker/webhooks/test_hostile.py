"""No hostile address is connected to: what connects is watched at the socket, below every library."""

import re
import socket
import ssl
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from ipaddress import ip_network
from pathlib import Path

import certifi
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.fixtures.hostile import LITERALS, NAMES, URLS
from tests.fixtures.receiver import receiver
from worker.values.results import MadeCall
from worker.webhooks import sender, tool_calls
from worker.webhooks.sender import Answer, send
from worker.webhooks.signing import new_secret
from worker.webhooks.targets import Targets
from worker.webhooks.tool_calls import CallStop, NewCall, ToolCaller

SECRET = new_secret()
LOOPBACK = Targets((ip_network("127.0.0.0/8"),))
PUBLIC = "93.184.216.34"


@dataclass(slots=True)
class Watch:
    """What the process tried to connect to."""

    connected: list[str] = field(default_factory=list)
    resolved: list[str] = field(default_factory=list)


_watches: list[Watch] = []


def _audit(event: str, arguments: tuple) -> None:
    # The attempts are made by this thread's event loop; other threads have connections of their own.
    if event == "socket.connect" and _watches and threading.current_thread() is threading.main_thread():
        address = arguments[1]
        _watches[-1].connected.append(str(address[0]) if isinstance(address, tuple) else str(address))
        if str(_watches[-1].connected[-1]) == PUBLIC:
            raise OSError("tests do not leave this machine")


sys.addaudithook(_audit)


@contextmanager
def watching() -> Iterator[Watch]:
    _watches.append(Watch())
    try:
        yield _watches[-1]
    finally:
        _watches.pop()


def post(url: str, targets: Targets = Targets(), *, seconds: float = 10) -> Answer:  # noqa: B008 - frozen
    return send(url, event_id="evt_1", body="{}", secrets=[SECRET], timeout_seconds=seconds, targets=targets)


@pytest.fixture(autouse=True)
def _no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool_calls, "WAITS", ())


def call(url: str, targets: Targets = Targets()) -> MadeCall:  # noqa: B008 - frozen
    """Ask a tool endpoint at this address; it must be refused, or fail."""
    new = NewCall(url, "key", {}, timeout_seconds=10, seconds_left=10)
    made = ToolCaller([SECRET], targets, 1).make(MadeCall("call_1", "f", "{}"), new, CallStop())
    assert (made.answer, made.status_code, made.has_failed) == (None, None, True)
    return made


def answering(monkeypatch: pytest.MonkeyPatch, answers: dict[str, list[str]]) -> None:
    """Put names into the resolver that the sockets of this process use; anything else is asked for real."""
    real = socket.getaddrinfo

    def resolve(host: str | bytes, port: int, *args: object, **options: object) -> list[tuple]:
        name = host.decode() if isinstance(host, bytes) else host
        if _watches:
            _watches[-1].resolved.append(name)
        if name not in answers:
            return real(host, port, *args, **options)  # type: ignore[arg-type]
        return [
            (socket.AF_INET6, socket.SOCK_STREAM, 6, "", (address, port, 0, 0))
            if ":" in address
            else (socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))
            for address in answers[name]
        ]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)


def test_the_corpus_is_as_large_as_promised() -> None:
    assert len(LITERALS) + len(NAMES) + len(URLS) >= 100


@pytest.mark.parametrize("url", [f"https://{host}/" for host in LITERALS.values()], ids=list(LITERALS))
def test_no_spelling_of_an_inner_address_is_connected_to(url: str) -> None:
    with watching() as watch:
        answer = post(url)
        call(url)
    assert watch.connected == []
    assert (answer.status_code, bool(answer.error)) == (None, True)


@pytest.mark.parametrize("name", NAMES)
def test_no_name_of_an_inner_address_is_connected_to(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, {name: NAMES[name], name.lower(): NAMES[name]})
    with watching() as watch:
        answer = post(f"https://{name}/")
        made = call(f"https://{name}/")
    assert watch.connected == []
    assert "not a public address" in (made.error or "")
    assert watch.resolved, "it was refused for another reason"
    assert "not a public address" in (answer.error or "")


@pytest.mark.parametrize("url", URLS.values(), ids=list(URLS))
def test_no_trick_of_spelling_connects(url: str) -> None:
    with watching() as watch:
        assert post(url).status_code is None
        call(url)
        # Not even where the operator allows loopback.
        if "93.184" in url or "@" in url.partition("#")[0].partition("?")[0]:
            assert post(url, LOOPBACK).status_code is None
            call(url, LOOPBACK)
    assert watch.connected == []


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "2130706433", "0x7f000001", "127.1", "127.0.1"])
def test_the_watch_sees_connections_that_are_allowed(host: str) -> None:
    """The control: the same addresses are connected to once they are allowed, and refused otherwise."""
    with receiver() as hook, watching() as watch:
        url = hook.url.replace("127.0.0.1", host)
        assert post(url).error is not None
        assert watch.connected == []
        assert post(url, LOOPBACK).is_delivered
        assert "127.0.0.1" in watch.connected


def test_a_public_address_is_connected_to() -> None:
    with watching() as watch:
        post(f"https://{PUBLIC}/")
    assert watch.connected == [PUBLIC]


def test_an_answer_that_changes_after_the_check_is_never_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Public when it is checked, loopback ever after: the one lookup decides."""
    lookups = []

    def resolve(host: str, port: int, *_: object, **__: object) -> list[tuple]:
        lookups.append(host)
        address = PUBLIC if len(lookups) == 1 else "127.0.0.1"
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    with watching() as watch:
        post("https://rebind.example/")
    assert watch.connected == [PUBLIC]
    assert lookups.count("rebind.example") == 1
    lookups.clear()
    with watching() as watch:
        call("https://rebind.example/")
    assert watch.connected == [PUBLIC]
    assert lookups.count("rebind.example") == 1


def test_an_answer_that_turns_bad_is_refused_at_the_next_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {"turns.example": [PUBLIC]}
    answering(monkeypatch, answers)
    with watching() as watch:
        post("https://turns.example/")
        answers["turns.example"] = ["127.0.0.1"]
        assert "not a public address" in (post("https://turns.example/").error or "")
        assert "not a public address" in (call("https://turns.example/").error or "")
    assert watch.connected == [PUBLIC]


def test_a_name_that_turns_bad_between_two_attempts_at_a_call_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each attempt at a call looks the name up, checks what it finds and connects to that alone."""
    monkeypatch.setattr(tool_calls, "WAITS", (0.0, 0.0))
    answers, lookups = [PUBLIC, "169.254.169.254"], []

    def resolve(host: str, port: int, *_: object, **__: object) -> list[tuple]:
        lookups.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (answers[min(len(lookups), 2) - 1], port))]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    with watching() as watch:
        made = call("https://turns.example/")
    assert watch.connected == [PUBLIC]
    assert (made.attempts, "not a public address" in (made.error or "")) == (2, True)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_into_loopback_is_not_followed(status: int) -> None:
    with receiver() as inner, receiver((status, {"location": inner.url})) as hook, watching() as watch:
        answer = post(hook.url, LOOPBACK)
        assert (answer.status_code, answer.is_delivered) == (status, False)
        assert (len(hook.calls), len(inner.calls)) == (1, 0)
    assert len(watch.connected) == 1
    with receiver() as inner, receiver((status, {"location": inner.url})) as hook, watching() as watch:
        new = NewCall(hook.url, "key", {}, timeout_seconds=10, seconds_left=10)
        made = ToolCaller([SECRET], LOOPBACK, 1).make(MadeCall("call_1", "f", "{}"), new, CallStop())
        assert (made.status_code, made.answer, made.has_failed) == (status, None, True)
        assert (len(hook.calls), len(inner.calls)) == (1, 0)
    assert len(watch.connected) == 1


def test_no_proxy_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    with receiver() as proxy, receiver() as hook:
        for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
            monkeypatch.setenv(name, proxy.url)
        monkeypatch.setenv("NO_PROXY", "")
        assert post(hook.url, LOOPBACK).is_delivered
        assert (len(hook.calls), len(proxy.calls)) == (1, 0)


def test_no_credentials_of_a_netrc_are_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login me password secret\n")
    monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))
    monkeypatch.setenv("HOME", str(tmp_path))
    with receiver() as hook:
        post(hook.url, LOOPBACK)
        assert "authorization" not in hook.calls[0][0]


def certificate(directory: Path, name: str) -> Path:
    """Write a self-signed certificate of a host and its key into one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = directory / "certificate.pem"
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.write_bytes(made.public_bytes(serialization.Encoding.PEM) + private)
    return path


@pytest.fixture
def tls_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[int, list[str | None]]]:
    """A TLS server with a certificate of hook.example that we trust; the names that clients asked it for."""
    path = certificate(tmp_path, "hook.example")
    monkeypatch.setattr(certifi, "where", lambda: str(path))
    sender._tls.cache_clear()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(path)
    asked: list[str | None] = []
    context.sni_callback = lambda _socket, name, _context: asked.append(name)

    def serve(server: socket.socket) -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            with connection:
                try:
                    with context.wrap_socket(connection, server_side=True) as secure:
                        read_request(secure)
                        secure.sendall(b"HTTP/1.1 204 No Content\r\n\r\n")
                except OSError:
                    continue

    with ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        thread = threading.Thread(target=serve, args=(server,), daemon=True)
        thread.start()
        yield server.getsockname()[1], asked
        server.shutdown(socket.SHUT_RDWR)
        thread.join(30)
    sender._tls.cache_clear()


def read_request(connection: socket.socket) -> None:
    """Read to the end of the body: who hangs up before it resets the connection."""
    request = b""
    while part := connection.recv(65536):
        request += part
        head, end, body = request.partition(b"\r\n\r\n")
        length = re.search(rb"(?i)content-length: (\d+)", head)
        if end and length and len(body) >= int(length[1]):
            return


def test_tls_asks_for_the_name_and_verifies_it(
    tls_server: tuple[int, list[str | None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection goes to a literal; who is asked for and who must answer is the name."""
    port, asked = tls_server
    answering(monkeypatch, {"hook.example": ["127.0.0.1"], "other.example": ["127.0.0.1"]})
    with watching() as watch:
        assert post(f"https://hook.example:{port}/", LOOPBACK).status_code == 204
        assert "certificate" in (post(f"https://other.example:{port}/", LOOPBACK).error or "").lower()
    assert asked == ["hook.example", "other.example"]
    assert watch.connected == ["127.0.0.1", "127.0.0.1"]
