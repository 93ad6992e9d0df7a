"""A webhook receiver that keeps a record of what it accepted, and has moods."""

import contextlib
import json
import socket
import struct
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from standardwebhooks import Webhook

MOODS = ("hangs", "resets", "redirects", "answers_500", "streams")
HANG_SECONDS = 30.0
CHUNK = b"x" * 4096


@dataclass(slots=True)
class Record:
    """What arrived with a good signature and was answered with 200, by batch."""

    url: str = ""
    mood: str = "well"
    delay: float = 0.0  # seconds before it answers
    accepted: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))  # batch -> event ids
    bodies: dict[str, dict[str, Any]] = field(default_factory=dict)  # event id -> what it said last
    forged: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)  # events whose body was not always the same
    num_refused: int = 0
    followed: int = 0  # requests to where a redirect pointed
    lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, headers: dict[str, str], body: bytes, secret: str) -> None:
        """Note an event."""
        event_id = headers["webhook-id"]
        said = json.loads(body)
        with self.lock:
            try:
                Webhook(secret).verify(body, headers)
            except Exception as error:  # noqa: BLE001 - any failure is one to report
                self.forged.append(f"{event_id}: {error}")
                return
            if self.bodies.setdefault(event_id, said) != said:
                self.changed.append(event_id)
            self.accepted[said["batch_id"]].append(event_id)


class Handler(BaseHTTPRequestHandler):
    """Takes events while it is well, and misbehaves in its mood."""

    record: Record
    secret: str

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.path != "/hook":
            self.record.followed += 1
        elif self.record.mood == "well":
            headers = {name.lower(): value for name, value in self.headers.items()}
            self.record.take(headers, body, self.secret)
            time.sleep(self.record.delay)
            self._answer(200)
        else:
            self.record.num_refused += 1
            with contextlib.suppress(OSError):
                getattr(self, f"_{self.record.mood}")()

    def _hangs(self) -> None:
        time.sleep(HANG_SECONDS)

    def _resets(self) -> None:
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()

    def _redirects(self) -> None:
        self._answer(302, location=self.record.url.replace("/hook", "/elsewhere"))

    def _answers_500(self) -> None:
        self._answer(500)

    def _streams(self) -> None:
        """Never finish the headers."""
        self.wfile.write(b"HTTP/1.1 200 OK\r\n")
        while True:
            self.wfile.write(b"x-more: " + CHUNK + b"\r\n")

    def _answer(self, status: int, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


class Server(ThreadingHTTPServer):
    """A thread a connection; none keeps the end of the run waiting."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def handle_error(self, *_: object) -> None:
        """A sender that went away is no news."""


@contextlib.contextmanager
def receiving(secret: str) -> Iterator[Record]:
    """Run a receiver on loopback."""
    record = Record()
    server = Server(("127.0.0.1", 0), type("Handler", (Handler,), {"record": record, "secret": secret}))
    record.url = f"http://127.0.0.1:{server.server_address[1]}/hook"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
    thread.start()
    try:
        yield record
    finally:
        server.shutdown()
        server.server_close()
