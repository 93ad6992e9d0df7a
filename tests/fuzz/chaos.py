"""Inputs that nobody means well with: what is valid, spoiled by a seeded generator."""

import json
import math
from collections.abc import Sequence
from copy import deepcopy
from random import Random
from typing import Any

TEXTS = (
    "",
    " ",
    "\x00",
    "a\x00b",
    "\ud800",
    "\udc00\ud800",
    "\u2028\u2029\x85",
    "\ufeff",
    "\uffff",
    "\U0001f642" * 40,
    "e" + "\u0301" * 200,
    "\u202eabc",
    "null",
    "NaN",
    "Infinity",
    "-1",
    "1e400",
    "1_0",
    "\u0661\u0662",
    "0x10",
    "9" * 30,
    "9" * 5000,
    "../../../etc/passwd",
    "file-../../x",
    "%00%2e%2e%2f",
    "%s%n%x",
    "{{7*7}}{% for %}",
    "\r\nx-injected: 1",
    "';DROP TABLE batches;--",
    "<script>alert(1)</script>",
    "\x1b[31m\x07",
    "a" * 70,
    "a" * 5000,
    "(a+)+$",
    "batch_" + "0" * 32,
    "whsec_!!!",
    "24h",
    "0s",
    "999999d",
)
NUMBERS: tuple[Any, ...] = (
    0,
    -1,
    1,
    2,
    127,
    2**15,
    2**31 - 1,
    2**31,
    2**32,
    2**53,
    2**63 - 1,
    2**63,
    -(2**63) - 1,
    2**64,
    10**40,
    10**400,
    -0.0,
    0.5,
    1.0,
    1e308,
    5e-324,
    1e-40,
    math.nan,
    math.inf,
    -math.inf,
)
BYTES = (
    b"",
    b"\x00",
    b"\n",
    b"\r\n",
    b"\xff",
    b"\xc0\x80",
    b"\xed\xa0\x80",
    b"\xf4\x90\x80\x80",
    b"\xef\xbb\xbf",
    b"\\u0000",
    b"\\ud800",
    b"{",
    b"}",
    b"[",
    b"]",
    b'"',
    b"\\",
    b",",
    b":",
    b"--",
    b"\x1f\x8b",
    b"NaN",
    b"-Infinity",
    b"1e999999",
    b"9" * 400,
    b"[" * 300,
    b'{"a":' * 300,
    b" " * 200,
    b"A" * 3000,
)


class Chaos(Random):
    """A seeded source of spoiled inputs. Lone surrogates, NUL, NaN and numbers beyond any type included."""

    def text(self) -> str:
        """Return a text to stumble over."""
        if self.random() < 0.7:
            return self.choice(TEXTS)
        return "".join(
            chr(self.choice((self.randrange(128), self.randrange(0x3000), self.randrange(0x110000))))
            for _ in range(self.randrange(12))
        )

    def scalar(self) -> Any:
        """Return a JSON scalar, or what Python's reader takes for one."""
        kind = self.randrange(5)
        if kind == 0:
            return self.choice((None, True, False))
        return self.choice(NUMBERS) if kind < 3 else self.text()

    def value(self, depth: int = 3) -> Any:
        """Return any JSON value."""
        kind = self.randrange(6) if depth else 5
        if kind == 0:
            return [self.value(depth - 1) for _ in range(self.randrange(4))]
        if kind == 1:
            return {self.text(): self.value(depth - 1) for _ in range(self.randrange(4))}
        if kind == 2 and self.random() < 0.1:
            return nested(self.randrange(2, 120))
        return self.scalar()

    def spoiled(self, valid: Any, changes: int | None = None) -> Any:
        """Return a copy of a JSON value with a few things wrong in it; now and then nothing is."""
        value = deepcopy(valid)
        for _ in range(self.choice((0, 1, 1, 1, 2, 3)) if changes is None else changes):
            value = self._spoil(value)
        return value

    def _spoil(self, value: Any) -> Any:
        if isinstance(value, dict) and value and self.random() < 0.85:
            return self._spoil_object(value)
        if isinstance(value, list) and value and self.random() < 0.85:
            return self._spoil_list(value)
        if isinstance(value, str) and self.random() < 0.5:
            place = self.randrange(len(value) + 1)
            return value[:place] + self.text() + value[place:]
        if isinstance(value, (int, float)) and not isinstance(value, bool) and self.random() < 0.5:
            third = value / 3 if abs(value) < 10**300 else 0.1
            return self.choice((-value, value + 1, value * 10**9, third))
        return self.choice((self.scalar, self.value, lambda: [value], lambda: {"a": value}))()

    def _spoil_object(self, value: dict[str, Any]) -> dict[str, Any]:
        key = self.choice(list(value))
        action = self.randrange(8)
        if action == 0:
            del value[key]
        elif action == 1:
            value[self.text()] = self.value(2)
        elif action == 2:
            value[self.choice((key.upper(), key + "\x00", key + " ", self.text()))] = value.pop(key)
        elif action == 3:
            value[key] = self.value(2)
        else:
            value[key] = self._spoil(value[key])
        return value

    def _spoil_list(self, value: list[Any]) -> list[Any]:
        place = self.randrange(len(value))
        action = self.randrange(6)
        if action == 0:
            return value * self.choice((0, 2, 50))
        if action == 1:
            value.insert(place, self.value(2))
        else:
            value[place] = self._spoil(value[place])
        return value

    def spelled(self, value: Any) -> bytes:
        """Return a JSON value as bytes, spelled in one of several ways, not all of them allowed."""
        text = json.dumps(value, ensure_ascii=self.random() < 0.5, allow_nan=True)
        data = text.encode(self.choice(("utf-8", "utf-8", "utf-8", "utf-16", "latin-1")), "replace")
        if self.random() < 0.3:
            data = text.encode("utf-8", "surrogatepass")
        if isinstance(value, dict) and value and self.random() < 0.1:  # a key that comes twice
            key = json.dumps(self.choice(list(value)))
            data = data[:1] + f"{key}:{json.dumps(self.scalar())},".encode() + data[1:]
        return data

    def damaged(self, data: bytes, most: int = 3) -> bytes:
        """Return bytes with some of them changed, cut, doubled or moved; now and then none."""
        for _ in range(self.randrange(most + 1)):
            place = self.randrange(len(data) + 1)
            end = min(len(data), place + self.choice((1, 1, 2, 4, 16, 100)))
            action = self.randrange(6)
            if action == 0:
                data = data[:place] + data[end:]
            elif action == 1:
                data = data[:place] + self.choice(BYTES) + data[place:]
            elif action == 2:
                data = data[:place] + self.randbytes(end - place) + data[end:]
            elif action == 3:
                data = data[:place] + data[place:end] * 2 + data[end:]
            elif action == 4:
                data = data[:place]
            elif data:
                place = self.randrange(len(data))
                data = data[:place] + bytes([data[place] ^ (1 << self.randrange(8))]) + data[place + 1 :]
        return data

    def cut(self, data: bytes) -> list[bytes]:
        """Return bytes as a network hands them over: in pieces of any size, empty ones too."""
        if self.random() < 0.2:
            return [data]
        most = self.choice((1, 2, 7, 40, 1000))
        pieces = []
        start = 0
        while start < len(data) and len(pieces) < 400:
            size = self.randrange(most + 1)
            pieces.append(data[start : start + size])
            start += size
        return [*pieces, data[start:]]

    def line_of(self, words: Sequence[str], most: int = 8) -> str:
        """Return words and odd texts put together."""
        return "".join(
            self.choice(words) if self.random() < 0.7 else self.text() for _ in range(self.randrange(most))
        )


def nested(depth: int) -> Any:
    """Return lists and objects within each other."""
    value: Any = 0
    for level in range(depth):
        value = [value] if level % 2 else {"a": value}
    return value
