"""Runs a small webhook receiver on loopback that verifies signatures, as a customer would write one."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from standardwebhooks import Webhook, WebhookVerificationError


@dataclass(slots=True)
class EventReceiver:
    """The receiver's URL, and the verified events that it has received."""

    url: str
    arrived: threading.Condition = field(default_factory=threading.Condition)
    events: list[dict[str, Any]] = field(default_factory=list)

    def wait(self, seconds: float) -> dict[str, Any] | None:
        """Wait for the first verified event and return it; None if none comes in time."""
        with self.arrived:
            self.arrived.wait_for(lambda: self.events, seconds)
            return self.events[0] if self.events else None


@contextmanager
def receiver(secret: str) -> Iterator[EventReceiver]:
    """Run a receiver that keeps events whose signature verifies and answers 401 to the rest."""
    webhook = Webhook(secret)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            try:
                event = webhook.verify(body, dict(self.headers.items()))
            except WebhookVerificationError:
                self.send_error(HTTPStatus.UNAUTHORIZED)
                return
            self.send_response(HTTPStatus.NO_CONTENT)
            self.end_headers()
            with received.arrived:
                received.events.append(event)
                received.arrived.notify_all()

        def log_message(self, *_: object) -> None:
            """Log nothing: the demo prints what matters."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    received = EventReceiver(f"http://127.0.0.1:{server.server_address[1]}/webhook")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield received
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
