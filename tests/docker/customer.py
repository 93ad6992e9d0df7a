"""A customer of a deployment in containers: submits, repeats what got no answer, counts what came back."""

import json
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import httpx
from standardwebhooks import Webhook

from tests.fixtures.deployment import eventually
from tests.fixtures.receiver import Receiver
from worker.up import ROOT

LINES = ROOT / "docs" / "examples" / "requests.jsonl"
PROMPTS = ["def read_lines(path):\n", "The json module provides", "import asyncio\n", "A list is"]


@dataclass(slots=True)
class Customer:
    """Calls the API at whatever address is good now, with its own key."""

    address: Callable[[], str]
    key: str
    hook: Receiver
    secret: str
    batches: dict[str, int] = field(default_factory=dict)  # requests by id of an accepted batch
    unanswered: int = 0  # calls that got no answer, or were told to come back

    def call(self, method: str, path: str, *, seconds: float = 120, **options: Any) -> httpx.Response:
        """Call a route until it answers anything but 502, 503 or 504."""
        headers = {"Authorization": f"Bearer {self.key}"} | options.pop("headers", {})

        def answered() -> httpx.Response | None:
            try:
                with httpx.Client(timeout=60, trust_env=False) as client:
                    answer = client.request(method, f"{self.address()}{path}", headers=headers, **options)
            except httpx.TransportError:
                self.unanswered += 1
                return None
            if answer.status_code in {502, 503, 504}:
                self.unanswered += 1
                return None
            return answer

        found = eventually(answered, seconds=seconds, what=f"an answer to {method} {path}")
        assert isinstance(found, httpx.Response)
        assert found.is_success, found.text
        return found

    def submit(self, prompts: list[str], **options: Any) -> str:
        """Submit a batch, once however often the call is repeated; return its id."""
        answer = self.call(
            "POST",
            "/v1/batch/async",
            json={"prompts": prompts, "callback_url": self.hook.url, **options},
            headers={"Idempotency-Key": uuid4().hex},
        )
        batch = str(answer.json()["batch_id"])
        self.batches[batch] = len(prompts)
        return batch

    def submit_until(self, stopping: threading.Event) -> None:
        """Submit small batches, one after another."""
        while not stopping.wait(0.5):  # more would only pile up where nothing runs for a minute
            self.submit(PROMPTS, max_tokens=8)

    def batch(self, batch_id: str) -> dict[str, Any]:
        """Return a batch without its outputs."""
        return dict(self.call("GET", f"/v1/batch/{batch_id}", params={"include": "none"}).json())

    def wait_for_progress(self, batch_id: str) -> None:
        """Wait until a batch has a result but not all."""
        eventually(lambda: self.batch(batch_id)["counts"]["completed"], what="a first result")
        assert self.batch(batch_id)["status"] == "processing", "too small: it has ended"

    def wait_for(self, batch_id: str, seconds: float = 300) -> None:
        """Wait until a batch has completed."""
        eventually(
            lambda: self.batch(batch_id)["status"] == "completed",
            seconds=seconds,
            what=f"the end of {batch_id}",
        )

    def run_file(self) -> None:
        """Upload a file of requests, run it, and check that its output has as many lines."""
        with LINES.open("rb") as lines:
            form = {"files": {"file": lines.read()}, "data": {"purpose": "batch"}}
        uploaded = self.call("POST", "/v1/files", **form).json()
        body = {
            "input_file_id": uploaded["id"],
            "endpoint": "/v1/chat/completions",
            "completion_window": "24h",
        }
        batch = self.call("POST", "/v1/batches", json=body).json()

        def output() -> str | None:
            found = self.call("GET", f"/v1/batches/{batch['id']}").json()
            assert found["status"] != "failed", found
            return found["output_file_id"] if found["status"] == "completed" else None

        content = self.call("GET", f"/v1/files/{eventually(output)}/content").text
        assert len(content.splitlines()) == len(LINES.read_text().splitlines())

    def check_everything(self) -> None:
        """Check that each accepted batch completed, with one result a request and one signed event."""
        for batch, count in self.batches.items():
            self.wait_for(batch)
            page = self.call("GET", f"/v1/batch/{batch}/results", params={"limit": 1000}).json()
            assert sorted(result["index"] for result in page["data"]) == list(range(count)), batch
            assert {result["status"] for result in page["data"]} == {"completed"}
        eventually(lambda: self.batches.keys() <= self.events().keys(), what="every event")
        # A delivery may come twice; an event has one id.
        assert all(len(ids) == 1 for ids in self.events().values())

    def events(self) -> dict[str, Counter[str]]:
        """Return how often each event came, by its id and its batch; every signature is right."""
        found: dict[str, Counter[str]] = {}
        hook = Webhook(self.secret)
        for headers, body in list(self.hook.calls):
            sent_at = datetime.fromtimestamp(int(headers["webhook-timestamp"]), UTC)  # it may be long ago
            signature = hook.sign(headers["webhook-id"], sent_at, body.decode())
            assert signature in headers["webhook-signature"].split()
            found.setdefault(json.loads(body)["batch_id"], Counter())[headers["webhook-id"]] += 1
        return found
