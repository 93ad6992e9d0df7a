"""Writes what an output says as the message, or the deltas of it, that chat clients read."""

from typing import Any

from worker.parsing.parser import OutputParser, parse
from worker.parsing.pieces import ArgumentsPiece, CallPiece, ContentPiece, ParsedCall, Piece, ReasoningPiece
from worker.values.outcomes import FinishReason
from worker.values.parsing import Parsing

REASONING = ("reasoning_content", "reasoning")  # the names of DeepSeek and of newer servers


def to_message(text: str, parsing: Parsing | None, *, seed: str) -> dict[str, Any]:
    """Return the whole message of an output. The ids of its calls follow from `seed`."""
    parsed = parse(text, parsing, seed=seed)
    message: dict[str, Any] = {"role": "assistant", "content": parsed.content, "refusal": None}
    if parsed.reasoning:
        message |= dict.fromkeys(REASONING, parsed.reasoning)
    if parsed.calls:
        message["content"] = parsed.content or None
        if parsing is not None and parsing.is_older:
            first = parsed.calls[0]
            message["function_call"] = {"name": first.name, "arguments": first.arguments}
        else:
            message["tool_calls"] = [_to_call(call) for call in parsed.calls]
    return message


def finish_reason(reason: FinishReason | None, parsing: Parsing | None, *, has_calls: bool) -> str | None:
    """Return why an output ended; one that calls a tool, and is whole, ended for that."""
    if reason is not FinishReason.STOP or not has_calls:
        return reason
    return "function_call" if parsing is not None and parsing.is_older else "tool_calls"


class GrowingMessage:
    """A message that is told in deltas."""

    def __init__(self, parsing: Parsing | None, *, seed: str) -> None:
        self._parser = OutputParser(parsing, seed=seed)
        self._parsing = parsing
        self._has_begun = False
        self.has_calls = False

    def feed(self, text: str, *, is_end: bool) -> list[dict[str, Any]]:
        """Add a part of the output's text; return the deltas that are certain now."""
        if self._parsing is None:
            deltas: list[dict[str, Any]] = [{"content": text}]
        else:
            deltas = self._parsed(text, is_end=is_end)
        if deltas and not self._has_begun:
            deltas[0] = {"role": "assistant"} | deltas[0]
            self._has_begun = True
        return deltas

    def _parsed(self, text: str, *, is_end: bool) -> list[dict[str, Any]]:
        pieces = self._parser.feed(text)
        if is_end:
            pieces += self._parser.end()
        deltas = [delta for piece in pieces if (delta := self._to_delta(piece))]
        if is_end and not deltas:
            deltas = [{} if self._has_begun else {"content": ""}]
        return deltas

    def _to_delta(self, piece: Piece) -> dict[str, Any]:
        match piece:
            case ContentPiece(text):
                return {"content": text}
            case ReasoningPiece(text):
                return dict.fromkeys(REASONING, text)
            case CallPiece(index, call_id, name):
                self.has_calls = True
                start = {"index": index, "id": call_id, "type": "function"}
                return self._to_call_delta(start, {"name": name, "arguments": ""})
            case ArgumentsPiece(index, text):
                return self._to_call_delta({"index": index}, {"arguments": text})

    def _to_call_delta(self, call: dict[str, Any], function: dict[str, str]) -> dict[str, Any]:
        if self._parsing is not None and self._parsing.is_older:  # its clients read one call
            return {} if call["index"] else {"function_call": function}
        return {"tool_calls": [call | {"function": function}]}


def _to_call(call: ParsedCall) -> dict[str, Any]:
    return {
        "id": call.id,
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }
