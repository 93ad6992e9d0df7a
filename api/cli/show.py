"""Prints the answers of commands: tables for people, JSON on request, one sentence for an error."""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from api.json_lines import one_line

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]

EXIT_FAILED = 1


def print_json(value: Any) -> None:
    """Print a value as one line of JSON."""
    sys.stdout.write(one_line(json.dumps(value, ensure_ascii=False, default=_to_json)) + "\n")
    sys.stdout.flush()


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print rows under headings."""
    table = Table(*columns, box=None, pad_edge=False, header_style="bold")
    for row in rows:
        table.add_row(*(Text(to_text(value)) for value in row))
    _console().print(table)


def print_record(record: Mapping[str, Any]) -> None:
    """Print the fields of one record, one per line."""
    table = Table.grid(padding=(0, 2))
    for name, value in record.items():
        table.add_row(Text(name, style="bold"), Text(to_text(value)))
    _console().print(table)


def to_text(value: Any) -> str:
    """Return a value as text for people."""
    if value is None:
        return "-"
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%d %H:%M:%S")
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {to_text(inner)}" for key, inner in value.items())
    if isinstance(value, (set, frozenset, list, tuple)):
        return ", ".join(sorted(map(to_text, value)))
    return str(value)


def fail(message: str) -> NoReturn:
    """End the command with a sentence on standard error."""
    sys.stderr.write(f"{message}\n")
    raise SystemExit(EXIT_FAILED)


def _console() -> Console:
    # Rich would cut a table to 80 columns where the output is no terminal.
    return Console() if sys.stdout.isatty() else Console(width=240)


def _to_json(value: Any) -> Any:
    return sorted(value) if isinstance(value, (set, frozenset)) else value.isoformat()
