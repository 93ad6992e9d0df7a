"""Reads text that comes in parts, for parsers written as generators: they yield where they need more."""

import json
import re
from collections.abc import Callable, Collection, Generator
from functools import lru_cache

from worker.parsing.pieces import ArgumentsPiece, CallPiece, ContentPiece, Piece, ReasoningPiece

Reading = Generator[None, None, None]
Telling = Generator[None, None, str]
Asking = Generator[None, None, bool]
ARGUMENTS = ("arguments", "parameters")


class TextReader:
    """The text so far, how much of it is read, and the pieces found in it.

    White space between content and a call belongs to neither: it is dropped.
    """

    def __init__(self, to_call_id: Callable[[int], str]) -> None:
        self.is_ended = False
        self.pieces: list[Piece] = []
        self._text = ""
        self._at = 0
        self._held_from: int | None = None
        self._to_call_id = to_call_id
        self._num_calls = 0
        self._space = ""  # read after content, which it belongs to if more follows
        self._is_after_call = False
        self._hides_reasoning = False

    def hide_reasoning(self) -> None:
        """Tell no reasoning from now on."""
        self._hides_reasoning = True

    def add(self, text: str) -> None:
        """Add the next part of the text."""
        kept_from = self._at if self._held_from is None else self._held_from
        self._text = self._text[kept_from:] + text
        self._at -= kept_from
        self._held_from = None if self._held_from is None else 0

    # Reading: the generators wait until the text says what they ask.

    def has_more(self) -> Asking:
        """Return whether any text comes next."""
        while self._at >= len(self._text) and not self.is_ended:
            yield
        return self._at < len(self._text)

    def take(self, num_characters: int = 1) -> str:
        """Read text that is there."""
        taken = self._text[self._at : self._at + num_characters]
        self._at += len(taken)
        return taken

    def put_back(self, num_characters: int) -> None:
        """Make text that was read just now unread."""
        self._at -= num_characters

    def space(self) -> Telling:
        """Read white space."""
        found = ""
        while (yield from self.has_more()) and self._text[self._at].isspace():
            found += self.take()
        return found

    def starts(self, *marks: str) -> Telling:
        """Return the mark that comes next, unread; empty if none does. None may be the start of another."""
        while True:
            rest = self._text[self._at : self._at + max(map(len, marks))]
            for mark in marks:
                if rest.startswith(mark):
                    return mark
            if self.is_ended or not any(mark.startswith(rest) for mark in marks):
                return ""
            yield

    def skip(self, mark: str) -> Asking:
        """Read a mark if it comes next; return whether it did."""
        found = yield from self.starts(mark)
        self.take(len(found))
        return bool(found)

    def copy_until(self, tell: Callable[[str], None], *marks: str) -> Telling:
        """Read and tell the text before the first mark, and read that; return it, or "" at the end."""
        while True:
            if marks and (found := _any_of(marks).search(self._text, self._at)):
                self._tell(tell, found.start())
                self._at = found.end()
                return found[0]
            self._tell(tell, len(self._text) - (0 if self.is_ended else self._num_uncertain(marks)))
            if self.is_ended:
                return ""
            yield

    def _tell(self, tell: Callable[[str], None], end: int) -> None:
        if end > self._at:
            tell(self.take(end - self._at))

    def _num_uncertain(self, marks: Collection[str]) -> int:
        """Return the length of the longest end of the unread text that may be the start of a mark."""
        most = min(len(self._text) - self._at, max(map(len, marks), default=1) - 1)
        for length in range(most, 0, -1):
            if any(mark.startswith(self._text[-length:]) for mark in marks):
                return length
        return 0

    def json_string(self) -> Generator[None, None, str | None]:
        """Read a JSON string; return its value, or None if none comes next."""
        if (yield from self.starts('"')):
            raw: list[str] = []
            yield from self.json_value(raw.append)
            try:
                return str(json.loads("".join(raw)))
            except ValueError:
                return None
        return None

    def json_value(self, tell: Callable[[str], None]) -> Asking:
        """Read and tell a JSON value as it is written; return whether it is whole."""
        depth, in_string, is_escaped = 0, False, False
        while (yield from self.has_more()):
            start, is_whole = self._at, False
            while not is_whole and self._at < len(self._text):
                character = self._text[self._at]
                if not (depth or in_string) and character in ",]} \n\r\t":
                    self._tell_from(tell, start)
                    return True  # the end of a number or a word
                self._at += 1
                if is_escaped:
                    is_escaped = False
                elif in_string:
                    is_escaped = character == "\\"
                    in_string = character != '"'
                    is_whole = not (in_string or depth)
                elif character == '"':
                    in_string = True
                elif character in "{[":
                    depth += 1
                elif character in "}]":
                    depth -= 1
                    is_whole = not depth
            self._tell_from(tell, start)
            if is_whole:
                return True
        return False

    def _tell_from(self, tell: Callable[[str], None], start: int) -> None:
        if self._at > start:
            tell(self._text[start : self._at])

    # Going back: what turns out to be no call is content.

    def hold(self, mark: str = "") -> None:
        """Keep the text from here on, and the mark before it, until `release` or `give_up`."""
        self._held_from = self._at - len(mark)

    def release(self) -> None:
        """Forget the text that was kept."""
        self._held_from = None

    def give_up(self) -> None:
        """Tell the text that was kept and read as content."""
        if self._held_from is not None:
            text = self._text[self._held_from : self._at]
            self._held_from = None
            self.content(text)

    # Telling: the pieces.

    def content(self, text: str) -> None:
        """Add content; white space waits for what follows."""
        if self._is_after_call and not self._space:
            text = text.lstrip()
        known = self._space + text
        kept = known.rstrip()
        self._space = known[len(kept) :]
        if kept:
            self._is_after_call = False
            self.pieces.append(ContentPiece(kept))

    def reasoning(self, text: str) -> None:
        """Add reasoning."""
        if not self._hides_reasoning:
            self.pieces.append(ReasoningPiece(text))

    def call(self, name: str) -> Callable[[str], None]:
        """Start a tool call; return what adds to its arguments."""
        self.release()
        self._space, self._is_after_call = "", True
        index = self._num_calls
        self._num_calls += 1
        self.pieces.append(CallPiece(index, self._to_call_id(index), name))
        return lambda text: self.pieces.append(ArgumentsPiece(index, text))

    def end(self) -> None:
        """Tell what was held back."""
        if self._space and not self._is_after_call:
            self.pieces.append(ContentPiece(self._space))
        self._space = ""

    def json_call(self, names: Collection[str] | None = None) -> Asking:
        """Read a JSON object that names a function and its arguments; return whether it is a call.

        If it is not, or `names` lacks its name, `give_up` makes content of what was read.
        """
        name, waiting, tell = None, "", None
        if not (yield from self.skip("{")):
            return False
        while True:
            yield from self.space()
            key = yield from self.json_string()
            yield from self.space()
            if key is None or not (yield from self.skip(":")):
                break
            yield from self.space()
            if key == "name" and name is None:
                name = yield from self.json_string()
                if name is None or (names is not None and name not in names):
                    return False
            elif key in ARGUMENTS and name is not None and tell is None and (yield from self.starts("{")):
                tell = self.call(name)
                yield from self.json_value(tell)
            else:
                raw: list[str] = []
                yield from self.json_value(raw.append)
                if key in ARGUMENTS:
                    waiting = _to_arguments("".join(raw))
            yield from self.space()
            if not (yield from self.skip(",")):
                break
        is_closed = yield from self.skip("}")
        if tell is None and name is not None and is_closed:
            tell = self.call(name)
            tell(waiting or "{}")
        return tell is not None


@lru_cache(64)
def _any_of(marks: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, marks)))


def _to_arguments(raw: str) -> str:
    """Return arguments as they are sent: some models write them as a JSON string, or as null."""
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError):
        return raw
    if value is None:
        return ""
    return value if isinstance(value, str) else raw
