"""Writes an output as the blocks of a message, whole or as the events that build them."""

from collections.abc import Iterable, Iterator
from math import isfinite
from typing import Any

from pydantic_core import from_json

from worker.parsing.parser import OutputParser
from worker.parsing.pieces import ArgumentsPiece, CallPiece, ContentPiece, Piece, ReasoningPiece
from worker.values.parsing import Parsing

# By the type of a block: the type of its deltas, and the field that grows.
DELTAS = {
    "text": ("text_delta", "text"),
    "thinking": ("thinking_delta", "thinking"),
    "tool_use": ("input_json_delta", "partial_json"),
}


def to_blocks(text: str, parsing: Parsing | None, *, seed: str) -> list[dict[str, Any]]:
    """Return the blocks of a whole output; the ids of calls follow from `seed`."""
    growing = GrowingBlocks(parsing, seed=seed)
    blocks: list[dict[str, Any]] = []
    grown: list[str] = []
    for event in [*growing.add(text), *growing.end()]:
        if event["type"] == "content_block_start":
            blocks.append(event["content_block"])
            grown.append("")
        elif event["type"] == "content_block_delta":
            grown[event["index"]] += event["delta"][DELTAS[blocks[-1]["type"]][1]]
    for block, whole in zip(blocks, grown, strict=True):
        if block["type"] == "tool_use":
            block["input"] = _to_input(whole)
        else:
            block[block["type"]] = whole
    return blocks


def _to_input(arguments: str) -> dict[str, Any]:
    """Return the arguments of a call, as far as they go if the output was cut off within them."""
    try:
        value = from_json(arguments, allow_partial=True)
    except ValueError:
        return {}
    return _finite(value) if isinstance(value, dict) else {}


def _finite(value: Any) -> Any:
    """Return a value with null for NaN and infinite numbers, which a model may write and JSON has not."""
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not isfinite(value) else value


class GrowingBlocks:
    """The blocks of an output that grows. The last one is open, until another begins or the output ends."""

    def __init__(self, parsing: Parsing | None, *, seed: str) -> None:
        self.num_calls = 0
        self._parser = OutputParser(parsing, seed=seed)
        self._num_begun = 0
        self._open = ""  # the type of the last block

    def add(self, text: str) -> Iterator[dict[str, Any]]:
        """Yield the events of some more text."""
        yield from self._write(self._parser.feed(text))

    def end(self) -> Iterator[dict[str, Any]]:
        """Yield the events that end the blocks; a message has at least one."""
        yield from self._write(self._parser.end())
        if not self._num_begun:
            yield from self._grow("text", "")
        yield self._event("content_block_stop")

    def _write(self, pieces: Iterable[Piece]) -> Iterator[dict[str, Any]]:
        for piece in pieces:
            match piece:
                case ContentPiece(text):
                    yield from self._grow("text", text)
                case ReasoningPiece(text):
                    yield from self._grow("thinking", text)
                case CallPiece(_, call_id, name):
                    self.num_calls += 1
                    yield from self._begin({"type": "tool_use", "id": call_id, "name": name, "input": {}})
                case ArgumentsPiece(_, text):
                    yield from self._grow("tool_use", text)

    def _grow(self, kind: str, text: str) -> Iterator[dict[str, Any]]:
        if kind != self._open:
            more = {"citations": None} if kind == "text" else {"signature": ""}
            yield from self._begin({"type": kind, kind: "", **more})
        if text:
            delta, name = DELTAS[kind]
            yield self._event("content_block_delta", delta={"type": delta, name: text})

    def _begin(self, block: dict[str, Any]) -> Iterator[dict[str, Any]]:
        if self._num_begun:
            yield self._event("content_block_stop")
        self._num_begun += 1
        self._open = block["type"]
        yield self._event("content_block_start", content_block=block)

    def _event(self, kind: str, **more: Any) -> dict[str, Any]:
        return {"type": kind, "index": self._num_begun - 1, **more}
