"""Makes the items of a response's output, and the events that tell how they grow."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

Event = dict[str, Any]  # without its sequence number
TokenLogprobs = list[dict[str, Any]]  # as `api.openai` writes them


@dataclass(slots=True)
class OutputWriter:
    """Writes one output, part by part. `name` is unique to the output, so an item's id is always the same."""

    name: str
    has_logprobs: bool = False
    items: list[dict[str, Any]] = field(default_factory=list)  # the last one is open until `end`
    _logprobs: TokenLogprobs = field(default_factory=list)  # of tokens whose text has not come yet
    _is_open: bool = False

    def add_logprobs(self, logprobs: Iterable[dict[str, Any]]) -> None:
        """Keep the logprobs of new tokens for the text that comes next."""
        self._logprobs += logprobs

    def add_text(self, text: str) -> list[Event]:
        """Add text for the reader."""
        events = self._open("message")
        part = self.items[-1]["content"][0]
        logprobs, self._logprobs = self._logprobs, []
        part["text"] += text
        part["logprobs"] += logprobs
        delta = {"content_index": 0, "delta": text, "logprobs": logprobs}
        return [*events, self._event("response.output_text.delta", **delta)]

    def end(self, status: str = "completed") -> list[Event]:
        """Close the last item; an output without any gets an empty message."""
        events = [] if self.items else self._open("message")
        if self._is_open and self.items[-1]["type"] == "message":
            self.items[-1]["content"][0]["logprobs"] += self._logprobs
        return events + self._close(status)

    def _open(self, kind: str) -> list[Event]:
        """Start an item, unless the open one is of this kind."""
        if self._is_open and self.items[-1]["type"] == kind:
            return []
        events = self._close("completed")
        self._is_open = True
        part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        item = {
            "id": f"msg_{self.name}_{len(self.items)}",
            "type": "message",
            "role": "assistant",
            "status": "in_progress",
        }
        self.items.append(item | {"content": [part]})
        return [
            *events,
            self._event("response.output_item.added", item=item | {"content": []}),
            self._event("response.content_part.added", content_index=0, part=part | {"logprobs": []}),
        ]

    def _close(self, status: str) -> list[Event]:
        """End the open item, if there is one."""
        if not self._is_open:
            return []
        self._is_open = False
        item = self.items[-1]
        item["status"] = status
        part = item["content"][0]
        text = {"text": part["text"], "logprobs": part["logprobs"]}
        return [
            self._event("response.output_text.done", content_index=0, **text),
            self._event("response.content_part.done", content_index=0, part=part),
            self._event("response.output_item.done", item=item),
        ]

    def _event(self, kind: str, **fields: Any) -> Event:
        place: dict[str, Any] = {"output_index": len(self.items) - 1}
        if "item" not in fields:
            place["item_id"] = self.items[-1]["id"]
        return {"type": kind, **place, **fields}
