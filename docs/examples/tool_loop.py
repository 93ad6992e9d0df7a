"""Have a batch call a function of this program, over HTTP, until each of its requests has an answer."""

import json
import os
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx

URL = os.environ.get("HEADRACE_URL", "http://127.0.0.1:8000")
KEY = os.environ.get("HEADRACE_API_KEY", "none")
STOCK = {"apples": 7, "pears": 0}


class Tools(BaseHTTPRequestHandler):
    """Answers calls. A real one verifies the signature first (docs/webhooks.md)."""

    def do_POST(self) -> None:
        """Answer one call; the model reads the body."""
        call = json.loads(self.rfile.read(int(self.headers["content-length"])))
        answer = json.dumps({"in_stock": STOCK.get(call["arguments"]["fruit"])}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


server = ThreadingHTTPServer(("127.0.0.1", 0), Tools)
threading.Thread(target=server.serve_forever, daemon=True).start()

look_up = {
    "name": "look_up",
    "description": "How many of a fruit there are.",
    "parameters": {
        "type": "object",
        "properties": {"fruit": {"type": "string", "enum": list(STOCK)}},
        "required": ["fruit"],
    },
}
requests: list[dict[str, Any]] = [
    {
        "custom_id": fruit,
        "messages": [{"role": "user", "content": f"Do we have {fruit}?"}],
        "tools": [{"type": "function", "function": look_up}],
        "tool_choice": "required",
        "parallel_tool_calls": False,
    }
    for fruit in STOCK
]
batch = {
    "requests": requests,
    "max_tokens": 120,
    "tool_endpoint": {"url": f"http://127.0.0.1:{server.server_port}/", "max_turns": 4},
}
with httpx.Client(base_url=URL, headers={"authorization": f"Bearer {KEY}"}) as client:
    batch_id = client.post("/v1/batch/async", json=batch).raise_for_status().json()["batch_id"]
    while client.get(f"/v1/batch/{batch_id}").json()["status"] in {"pending", "processing"}:
        time.sleep(0.2)
    for result in client.get(f"/v1/batch/{batch_id}/results").json()["data"]:
        for turn in result["tool_turns"] or []:
            for call in turn["calls"]:
                print(result["custom_id"], call["name"], call["arguments"], "->", call["answer"])
server.shutdown()
