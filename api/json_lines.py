"""Writes JSON on one line, whatever its reader takes for the end of a line."""

import json
from typing import Any

# JSON allows these in a string; `str.splitlines` and httpx's `iter_lines` end a line at them.
_LINE_ENDS = {ord(character): f"\\u{ord(character):04x}" for character in "\x85\u2028\u2029"}


def one_line(text: str) -> str:
    """Escape what some readers take for a line end in a JSON text without line breaks."""
    return text.translate(_LINE_ENDS)


def dumps(value: Any) -> str:
    """Return a value as one line of JSON, without the line break."""
    return one_line(json.dumps(value, ensure_ascii=False, separators=(",", ":")))
