"""Defines the pieces that an output is parsed into."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ContentPiece:
    """Text for the reader."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningPiece:
    """Text that the model wrote for itself before its answer."""

    text: str


@dataclass(frozen=True, slots=True)
class CallPiece:
    """Start of a tool call. `index` counts the calls of one output, from 0."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class ArgumentsPiece:
    """A part of the JSON arguments of the call of this index; its parts joined are the whole."""

    index: int
    text: str


Piece = ContentPiece | ReasoningPiece | CallPiece | ArgumentsPiece


@dataclass(frozen=True, slots=True)
class ParsedCall:
    """A whole tool call. `arguments` is JSON, unless the output was cut off within it."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ParsedOutput:
    """A whole output in its parts."""

    content: str
    reasoning: str
    calls: tuple[ParsedCall, ...]

    @classmethod
    def of(cls, pieces: Iterable[Piece]) -> "ParsedOutput":
        """Join pieces."""
        content, reasoning, calls, arguments = "", "", list[CallPiece](), list[str]()
        for piece in pieces:
            match piece:
                case ContentPiece(text):
                    content += text
                case ReasoningPiece(text):
                    reasoning += text
                case CallPiece():
                    calls.append(piece)
                    arguments.append("")
                case ArgumentsPiece(index, text):
                    arguments[index] += text
        return cls(
            content,
            reasoning,
            tuple(ParsedCall(one.id, one.name, text) for one, text in zip(calls, arguments, strict=True)),
        )
