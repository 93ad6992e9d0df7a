"""Parses the text of one output, as it grows or as a whole, by the marks of the model's family."""

import hashlib
from dataclasses import replace

from worker.parsing import coder, deepseek, gemma, harmony, hermes, llama, mistral, thinking
from worker.parsing.pieces import ArgumentsPiece, ContentPiece, ParsedOutput, Piece, ReasoningPiece
from worker.parsing.reader import Reading, TextReader
from worker.values.parsing import Family, Parsing
from worker.values.thinking import Thinking


class OutputParser:
    """Parser of one output. However its text is cut into parts, the pieces join to the same output."""

    def __init__(self, parsing: Parsing | None, *, seed: str) -> None:
        """Parse nothing but content if `parsing` is None. The ids of calls follow from `seed`."""
        is_short = parsing is not None and parsing.family is Family.MISTRAL
        self._reader = TextReader(lambda index: call_id(f"{seed}-{index}", is_short=is_short))
        if parsing is not None and parsing.hides_reasoning:
            self._reader.hide_reasoning()
        self._reading = _reading(self._reader, parsing)

    def feed(self, text: str) -> list[Piece]:
        """Add the next part of the text; return the pieces that are certain now."""
        self._reader.add(text)
        return self._go_on()

    def end(self) -> list[Piece]:
        """Return the last pieces, once, after the whole text was fed."""
        self._reader.is_ended = True
        self._go_on_to_end()
        return _joined(self._reader.pieces)

    def _go_on(self) -> list[Piece]:
        next(self._reading, None)
        found = _joined(self._reader.pieces)
        self._reader.pieces = []
        return found

    def _go_on_to_end(self) -> None:
        for _ in self._reading:
            pass
        self._reader.end()


def parse(text: str, parsing: Parsing | None, *, seed: str) -> ParsedOutput:
    """Parse a whole output."""
    parser = OutputParser(parsing, seed=seed)
    return ParsedOutput.of([*parser.feed(text), *parser.end()])


def call_id(seed: str, *, is_short: bool = False) -> str:
    """Return the id of a call, always the same for a seed. Mistral's templates take nine characters only."""
    digest = hashlib.blake2b(seed.encode(), digest_size=12).hexdigest()
    return digest[:9] if is_short else f"call_{digest}"


def _reading(reader: TextReader, parsing: Parsing | None) -> Reading:
    if parsing is not None and parsing.family is Family.HARMONY:
        return harmony.parse(reader)
    if parsing is not None and parsing.thinking is not None:
        return _after_thinking(reader, parsing, parsing.thinking)
    if parsing is None or not parsing.tools:
        return _content(reader)
    match parsing.family:
        case Family.HERMES:
            return hermes.parse(reader)
        case Family.LLAMA:
            return llama.parse(reader, parsing.tools)
        case Family.MISTRAL:
            return mistral.parse(reader)
        case Family.CODER:
            return coder.parse(reader, parsing.typed)
        case Family.DEEPSEEK:
            return deepseek.parse(reader)
        case Family.GEMMA:
            return gemma.parse(reader)
        case _:
            return _content(reader)


def _after_thinking(reader: TextReader, parsing: Parsing, marks: Thinking) -> Reading:
    yield from thinking.parse(reader, marks)
    yield from _reading(reader, replace(parsing, thinking=None))


def _content(reader: TextReader) -> Reading:
    yield from reader.copy_until(lambda text: reader.pieces.append(ContentPiece(text)))


def _joined(pieces: list[Piece]) -> list[Piece]:
    """Join neighbouring pieces of one kind."""
    found: list[Piece] = []
    for piece in pieces:
        match (found[-1] if found else None), piece:
            case ContentPiece(before), ContentPiece(text):
                found[-1] = ContentPiece(before + text)
            case ReasoningPiece(before), ReasoningPiece(text):
                found[-1] = ReasoningPiece(before + text)
            case ArgumentsPiece(index, before), ArgumentsPiece(same, text) if index == same:
                found[-1] = ArgumentsPiece(index, before + text)
            case _:
                found.append(piece)
    return found
