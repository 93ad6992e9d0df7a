"""Receive webhooks on http://127.0.0.1:9000/hook and check their signature with the standard library.

The secret is HEADRACE_WEBHOOK_SECRET or, for a deployment of `make up`, in .data/webhook_secret. The package
`standardwebhooks` checks the same signature in one line (docs/webhooks.md).
"""

import base64
import hashlib
import hmac
import json
import os
import time
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

PORT = int(os.environ.get("RECEIVER_PORT", "9000"))
SECRET = os.environ.get("HEADRACE_WEBHOOK_SECRET") or Path(".data/webhook_secret").read_text()
TOLERANCE_SECONDS = 300


def is_signed(headers: Message, body: bytes) -> bool:
    """Return whether Headrace has sent this body, and not long ago."""
    if abs(time.time() - int(headers.get("webhook-timestamp", 0))) > TOLERANCE_SECONDS:
        return False
    key = base64.b64decode(SECRET.strip().removeprefix("whsec_"))
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    expected = "v1," + base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()
    # While the secret is changed, an event has several signatures.
    return any(hmac.compare_digest(given, expected) for given in headers.get("webhook-signature", "").split())


class Handler(BaseHTTPRequestHandler):
    """Answers 204 to a signed event and 401 to anything else."""

    def do_POST(self) -> None:
        """Check and print one event."""
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        signed = is_signed(self.headers, body)
        self.send_response(204 if signed else 401)  # answer first, work later
        self.end_headers()
        if signed:
            event = json.loads(body)
            print(event["type"], event["data"]["id"], event["data"]["counts"], flush=True)

    def log_message(self, *_: object) -> None:
        """Log nothing but the events."""


with ThreadingHTTPServer(("127.0.0.1", PORT), Handler) as server:
    print(f"receiving on http://127.0.0.1:{PORT}/hook", flush=True)
    server.serve_forever()
