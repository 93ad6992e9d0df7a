"""Reads a file of prompts into fields of a submission: JSON lines, a CSV table, or a prompt a line."""

import csv
import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from api.table_lines import MAX_CELL_CHARACTERS

# The item of a submission that an error is about.
ITEM = re.compile(r"\b(?:prompts|requests|lines)\[(\d+)\]")
TEXT_COLUMNS = frozenset({"prompt", "custom_id", "kind", "pooling", "cache", "guided_regex"})
PROMPT_COLUMNS = ("prompt", "messages")
SHOWN_LINES = 5


class PromptFileError(Exception):
    """The file does not hold a batch. The message names the line."""


@dataclass(slots=True)
class PromptFile:
    """The requests of a file, the line at which each begins, and the lines that are blank."""

    name: str
    member: str  # of a submission: `prompts`, `requests` or `lines`
    items: list[Any] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    blank: list[int] = field(default_factory=list)

    def add(self, line: int, item: Any) -> None:
        """Add the request that begins at a line."""
        self.items.append(item)
        self.lines.append(line)

    def explain(self, message: str) -> str:
        """Return an error of the API about a request, with its line in place of its index."""
        match = ITEM.match(message)
        if match is None:
            return message
        rest = message[match.end() :].lstrip(".: ")
        return f"{self._place(match)}: {ITEM.sub(self._line, rest)}"

    def blank_lines(self) -> str | None:
        """Return a sentence about the blank lines; None if there are none."""
        if not self.blank:
            return None
        some = ", ".join(map(str, self.blank[:SHOWN_LINES])) + (", ..." if self.blank[SHOWN_LINES:] else "")
        noun = "line" if len(self.blank) == 1 else "lines"
        return f"{self.name}: skipped {len(self.blank)} blank {noun} ({noun} {some})"

    def _place(self, match: re.Match[str]) -> str:
        return f"{self.name}, {self._line(match)}"

    def _line(self, match: re.Match[str]) -> str:
        return f"line {self.lines[int(match[1])]}"


def read_prompts(name: str, text: Iterable[str]) -> PromptFile:
    """Read a .jsonl or .csv file into `requests`, and any other file into `prompts`, one a line.

    A line of JSON is a string, or an object with `prompt` or `messages` and any other field of a request. A
    table has a header that names such fields.

    Raises:
        PromptFileError: a line is no request, or there are no lines.

    """
    if name.endswith(".csv"):
        found = _read_table(name, text)
    elif name.endswith(".jsonl"):
        found = _read_lines(PromptFile(name, "requests"), text, _to_request)
    else:
        found = _read_lines(PromptFile(name, "prompts"), text, lambda line: line)
    if not found.items:
        raise PromptFileError(f"{name} has no prompts.")
    return found


def read_openai_lines(name: str, text: Iterable[str]) -> PromptFile:
    """Read lines of OpenAI's batch format into `lines`; raises as `read_prompts` does."""
    return _read_lines(PromptFile(name, "lines"), text, json.loads)


def json_or_text(text: str) -> Any:
    """Return the value of a JSON text, or the text itself if it is none."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _read_lines(found: PromptFile, text: Iterable[str], read: Callable[[str], Any]) -> PromptFile:
    for number, line in enumerate(text, 1):
        if not line.strip():
            if found.member == "prompts":  # no line of JSON is missed
                found.blank.append(number)
            continue
        try:
            found.add(number, read(line.rstrip("\r\n")))
        except (ValueError, RecursionError) as error:
            raise PromptFileError(f"{found.name}, line {number}: {error}") from error
    return found


def _to_request(line: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"this is not JSON: {error}") from error
    if isinstance(value, str):
        return {"prompt": value}
    if not isinstance(value, dict):
        raise ValueError("a line must be a JSON object or a string.")  # noqa: TRY004 - the caller names the line
    return value


def _read_table(name: str, text: Iterable[str]) -> PromptFile:
    csv.field_size_limit(MAX_CELL_CHARACTERS)
    rows, found = csv.reader(text, strict=True), PromptFile(name, "requests")
    header: list[str] = []
    while True:
        line = rows.line_num + 1
        try:
            cells = next(rows, None)
        except csv.Error as error:
            raise PromptFileError(f"{name}, line {line}: this is not CSV: {error}") from error
        if cells is None:
            return found
        if not "".join(cells).strip():
            found.blank.append(line)
        elif not header:
            header = [cell.strip() for cell in cells]
            _check_header(name, line, header)
        elif len(cells) != len(header):
            raise PromptFileError(
                f"{name}, line {line}: this row has {len(cells)} cells, and the header has {len(header)}."
                " Put a cell with a comma or a line break between double quotes."
            )
        else:
            found.add(line, _from_cells(header, cells))


def _check_header(name: str, line: int, header: list[str]) -> None:
    if not set(PROMPT_COLUMNS) & set(header):
        raise PromptFileError(
            f"{name}, line {line}: the header has no column `prompt`. Name the column of the prompts so."
        )
    if len(set(header)) < len(header):
        raise PromptFileError(f"{name}, line {line}: the header names a column twice.")


def _from_cells(header: list[str], cells: list[str]) -> dict[str, Any]:
    return {
        column: cell if column in TEXT_COLUMNS else _to_value(column, cell)
        for column, cell in zip(header, cells, strict=True)
        if cell
    }


def _to_value(column: str, cell: str) -> Any:
    value = json_or_text(cell)
    # The answer 7 is the text that an output must be, unless a rule says how to match it.
    return cell if column == "expected" and not isinstance(value, dict) else value
