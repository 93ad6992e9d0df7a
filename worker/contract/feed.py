"""Define the messages of a Feed: progress of running interactive work. May be lost; never the result."""

import json
from dataclasses import dataclass
from typing import Any

from worker.values.results import Logprobs, TokenLogprob


@dataclass(frozen=True, slots=True)
class Told:
    """Increment of one output: the texts of a choice's messages, joined, are its output."""

    position: int  # of the request in its batch
    index: int  # of the choice, over all prompts of the request
    offset: int  # characters of the output before this text; a gap shows that messages were lost
    text: str
    num_tokens: int
    logprobs: Logprobs | None = None
    finish_reason: str | None = None  # on the choice's last message only

    def to_json(self) -> str:
        """Return the text of the message."""
        value: dict[str, Any] = {
            "position": self.position,
            "index": self.index,
            "offset": self.offset,
            "text": self.text,
            "num_tokens": self.num_tokens,
        }
        if self.logprobs is not None:
            value["logprobs"] = [token.to_json() for token in self.logprobs]
        if self.finish_reason is not None:
            value["finish_reason"] = self.finish_reason
        return json.dumps(value)


@dataclass(frozen=True, slots=True)
class Saved:
    """Notice that results were committed and can be read."""

    def to_json(self) -> str:
        """Return the text of the message."""
        return "{}"


Message = Told | Saved


def read_message(text: str | bytes) -> Message:
    """Rebuild the message that `to_json` wrote."""
    value = json.loads(text)
    if not value:
        return Saved()
    if (logprobs := value.get("logprobs")) is not None:
        value["logprobs"] = tuple(TokenLogprob.from_json(token) for token in logprobs)
    return Told(**value)


def channel(batch_id: str) -> str:
    """Return the name of the Redis channel for a batch's messages."""
    return f"headrace:feed:{batch_id}"
