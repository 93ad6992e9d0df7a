"""Define the messages of a Feed: progress of running interactive work. May be lost; never the result."""

import json
from dataclasses import dataclass

from worker.values.delta import Delta


@dataclass(frozen=True, slots=True)
class Saved:
    """Notice that results were committed and can be read."""

    def to_json(self) -> str:
        """Return the text of the message."""
        return "{}"


Message = Delta | Saved


def read_message(text: str | bytes) -> Message:
    """Rebuild the message that `to_json` wrote."""
    value = json.loads(text)
    return Delta.from_json(value) if value else Saved()


def channel(batch_id: str) -> str:
    """Return the name of the Redis channel for a batch's messages."""
    return f"headrace:feed:{batch_id}"
