"""Define webhook events, which tell a receiver that a batch has ended.

The shape follows Standard Webhooks (https://www.standardwebhooks.com) and OpenAI's batch events.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

from worker.contract.states import BatchStatus
from worker.values.results import Output, RequestError

# A batch up to this size carries its outputs inline, in the webhook and in GET /v1/batch/{id}.
INLINE_OUTPUTS = 100
INLINE_OUTPUT_BYTES = 256 * 1024

PING = "webhook.ping"
BATCH_EVENTS = tuple(f"batch.{status}" for status in BatchStatus if status.is_terminal)


@dataclass(frozen=True, slots=True)
class Ping:
    """Test event with which an endpoint's owner sees that the endpoint works."""

    event_id: str
    created_at: datetime
    endpoint_id: str
    type: str = PING

    def to_body(self) -> str:
        """Return the exact text to sign and send."""
        event = {
            "id": self.event_id,
            "object": "event",
            "type": self.type,
            "created_at": int(self.created_at.timestamp()),
            "data": {"id": self.endpoint_id},
        }
        return json.dumps(event, separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class BatchEnded:
    """Event of a batch that has reached its terminal state."""

    event_id: str
    created_at: datetime
    batch_id: str
    status: BatchStatus
    name: str | None  # as its customer calls it
    counts: Mapping[str, int]
    usage: Mapping[str, Any]
    metadata: Mapping[str, Any]
    outputs: list[Output] | None  # in the order of the requests; None: too many to send
    error: RequestError | None = None  # why it failed
    files: Mapping[str, str] = field(default_factory=dict)  # of a batch from a file: link name -> id
    outside: Mapping[str, str | None] = field(default_factory=dict)  # output_uri, output_error

    @property
    def type(self) -> str:
        """The event's type: `batch.completed`, `batch.cancelled` and so on."""
        return f"batch.{self.status}"

    def to_body(self) -> str:
        """Return the exact text to sign and send."""
        links = {
            "batch": f"/v1/batch/{self.batch_id}",
            "results": f"/v1/batch/{self.batch_id}/results",
        }
        data: dict[str, Any] = {
            "id": self.batch_id,
            "status": self.status,
            "counts": self.counts,
            "usage": self.usage,
            "error": None if self.error is None else asdict(self.error),
            "name": self.name,
            "metadata": self.metadata,
            "links": links | {name: f"/v1/files/{id_}/content" for name, id_ in self.files.items()},
        }
        data |= self.outside
        if self.outputs is not None:
            data["outputs"] = self.outputs
        event = {
            "id": self.event_id,
            "object": "event",
            "type": self.type,
            "created_at": int(self.created_at.timestamp()),
            "batch_id": self.batch_id,
            "data": data,
        }
        return json.dumps(event, ensure_ascii=False, separators=(",", ":"))
