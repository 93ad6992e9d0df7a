"""Makes the items of a response's output, and the events that tell how they grow."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from worker.parsing.parser import OutputParser
from worker.parsing.pieces import ArgumentsPiece, CallPiece, ContentPiece, Piece, ReasoningPiece
from worker.values.parsing import Parsing

Event = dict[str, Any]  # without its sequence number
Item = dict[str, Any]
PREFIXES = {"message": "msg", "reasoning": "rs", "function_call": "fc"}


@dataclass(slots=True)
class OutputWriter:
    """Writes one output as it grows. `name` is unique to the output, so an item's id is always the same."""

    name: str
    parsing: Parsing | None
    items: list[Item] = field(default_factory=list)  # the last one is open until another comes, or `end`
    _parser: OutputParser = field(init=False)
    _logprobs: list[dict[str, Any]] = field(default_factory=list)  # of tokens whose text has not come yet
    _is_open: bool = False

    def __post_init__(self) -> None:
        self._parser = OutputParser(self.parsing, seed=self.name)

    def feed(self, text: str, logprobs: Iterable[dict[str, Any]] = ()) -> list[Event]:
        """Add the next part of the output, and the logprobs of its tokens, as `api.openai` writes them."""
        self._logprobs += logprobs
        return [event for piece in self._parser.feed(text) for event in self._add(piece)]

    def end(self, status: str = "completed") -> list[Event]:
        """Close the last item, with its status; an output without any item gets an empty message."""
        events = [event for piece in self._parser.end() for event in self._add(piece)]
        if not self.items:
            events += self._open_part("message", "output_text", role="assistant")
        return events + self._close(status)

    def _add(self, piece: Piece) -> list[Event]:
        match piece:
            case ContentPiece(text):
                events = self._open_part("message", "output_text", role="assistant")
                logprobs, self._logprobs = self._logprobs, []
                part = self.items[-1]["content"][0]
                part["text"] += text
                part["logprobs"] += logprobs
                delta = {"content_index": 0, "delta": text, "logprobs": logprobs}
                return [*events, self._event("response.output_text.delta", **delta)]
            case ReasoningPiece(text):
                events = self._open_part("reasoning", "reasoning_text", summary=[])
                self.items[-1]["content"][0]["text"] += text
                delta = {"content_index": 0, "delta": text}
                return [*events, self._event("response.reasoning_text.delta", **delta)]
            case CallPiece():
                call = {"call_id": piece.id, "name": piece.name, "arguments": ""}
                return self._open("function_call", **call)
            case ArgumentsPiece():
                self.items[-1]["arguments"] += piece.text
                return [self._event("response.function_call_arguments.delta", delta=piece.text)]

    def _open_part(self, kind: str, part_kind: str, **fields: Any) -> list[Event]:
        """Start an item with one part of text, unless the open item is of this kind."""
        if self._is_open and self.items[-1]["type"] == kind:
            return []
        events = self._open(kind, **fields, content=[])
        part: dict[str, Any] = {"type": part_kind, "text": ""}
        if kind == "message":
            part |= {"annotations": [], "logprobs": []}
        self.items[-1]["content"] = [part]
        return [*events, self._event("response.content_part.added", content_index=0, part=_copy(part))]

    def _open(self, kind: str, **fields: Any) -> list[Event]:
        """Start an item, after the end of the open one."""
        events = self._close("completed")
        self._is_open = True
        item_id = f"{PREFIXES[kind]}_{self.name}_{len(self.items)}"
        self.items.append({"id": item_id, "type": kind, "status": "in_progress", **fields})
        return [*events, self._event("response.output_item.added", item=_copy(self.items[-1]))]

    def _close(self, status: str) -> list[Event]:
        """End the open item, if there is one."""
        if not self._is_open:
            return []
        self._is_open = False
        item = self.items[-1]
        item["status"] = status
        return [*self._ended_parts(item), self._event("response.output_item.done", item=item)]

    def _ended_parts(self, item: Item) -> list[Event]:
        if item["type"] == "function_call":
            done = {"name": item["name"], "arguments": item["arguments"]}
            return [self._event("response.function_call_arguments.done", **done)]
        part = item["content"][0]
        text: dict[str, Any] = {"content_index": 0, "text": part["text"]}
        kind = "reasoning_text"
        if item["type"] == "message":
            kind = "output_text"
            part["logprobs"] += self._logprobs
            self._logprobs = []
            text["logprobs"] = part["logprobs"]
        return [
            self._event(f"response.{kind}.done", **text),
            self._event("response.content_part.done", content_index=0, part=part),
        ]

    def _event(self, kind: str, **fields: Any) -> Event:
        place: dict[str, Any] = {"output_index": len(self.items) - 1}
        if "item" not in fields:
            place["item_id"] = self.items[-1]["id"]
        return {"type": kind, **place, **fields}


def _copy(value: dict[str, Any]) -> dict[str, Any]:
    """Return what stays as it is while the item grows."""
    return {name: list(one) if isinstance(one, list) else one for name, one in value.items()}
