"""Turns the rows of a table into lines of OpenAI's batch format: Parquet, CSV or JSON lines, and a template.

No more than a piece of the table is in memory at once.
"""

import csv
import gzip
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Formatter
from typing import IO, Any

from api.table_fields import order_fields

PARQUET_ROWS = 1024  # read at once
# Rows whose fields are ordered together: as many as the files process puts into shards together.
ORDERED_ROWS, ORDERED_CHARACTERS = 16_384, 16 << 20
MAX_CELL_CHARACTERS = 1 << 24  # Python's own limit is smaller than a long prompt

REST = "*"  # in a template

Row = Mapping[str, Any]


class TableError(Exception):
    """A file is no table, or does not fit its template. The message names the row."""


class Template:
    """A prompt with names of columns in braces, such as `Label: {text}`. `{{` stands for a brace.

    `{*}` stands for all columns that are used nowhere else, as a JSON object.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        try:
            parts = list(Formatter().parse(text))
        except ValueError as error:
            raise TableError(f"the template: {error}. Write {{{{ and }}}} for braces.") from error
        if any(spec or conversion for _, _, spec, conversion in parts):
            raise TableError("the template: write only the name of a column between braces.")
        self._parts = [(literal, name) for literal, name, _, _ in parts]
        names = {name for _, name in self._parts if name is not None}
        self.columns, self.has_rest = names - {REST}, REST in names

    def fill(self, row: Row, rest: str = "") -> str:
        """Return the prompt of a row; an empty cell leaves nothing. Raises KeyError for an unknown column."""
        return "".join(literal + self._value(row, name, rest) for literal, name in self._parts)

    def _value(self, row: Row, name: str | None, rest: str) -> str:
        if name is None:
            return ""
        return rest if name == REST else _text(row[name])


def _text(value: object) -> str:
    return "" if value is None else str(value)


@dataclass(frozen=True, slots=True)
class LineForm:
    """How a row becomes a line. `custom_id` and `keep` name columns; `keep=None` keeps all others.

    `reorder_fields` lets the fields of `{*}` come in any order, so that rows begin alike. Without `{*}` it
    raises TableError.
    """

    template: Template
    body: Mapping[str, Any]  # of every line
    custom_id: str | None = None
    keep: tuple[str, ...] | None = None
    is_chat: bool = False
    system: str | None = None
    reorder_fields: bool = False

    def __post_init__(self) -> None:
        if self.reorder_fields and not self.template.has_rest:
            raise TableError("the template: reorder_fields needs {*}, the place of the fields to reorder.")

    @property
    def endpoint(self) -> str:
        """The endpoint that runs the lines."""
        return "/v1/chat/completions" if self.is_chat else "/v1/completions"

    def fields_of(self, row: Row) -> dict[str, str]:
        """Return the fields that stand for `{*}`, by column: all that are not empty, as JSON."""
        if not self.template.has_rest:
            return {}
        used = self.template.columns | {self.custom_id, *(self.keep or ())}
        left = {name: value for name, value in row.items() if name not in used and value is not None}
        return {name: f"{_to_json(name)}: {_to_json(value)}" for name, value in left.items()}

    def to_line(self, index: int, row: Row, rest: str = "") -> dict[str, Any]:
        """Return the line of a row, with `rest` in place of `{*}`; raises KeyError for an unknown column."""
        prompt = self.template.fill(row, rest)
        keep = self.keep
        if keep is None:
            used = self.template.columns | {self.custom_id}
            keep = () if self.template.has_rest else tuple(name for name in row if name not in used)
        kept = {name: row[name] for name in keep}
        asked: dict[str, Any] = {"prompt": prompt}
        if self.is_chat:
            messages = [] if self.system is None else [{"role": "system", "content": self.system}]
            asked = {"messages": [*messages, {"role": "user", "content": prompt}]}
        return {
            "custom_id": f"row-{index}" if self.custom_id is None else _text(row[self.custom_id]),
            "method": "POST",
            "url": self.endpoint,
            "body": {**self.body, **asked} | ({"metadata": kept} if kept else {}),
        }


def _to_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def lines_of(
    file: Path, form: LineForm, *, name: str | None = None, max_bytes: int | None = None
) -> Iterator[bytes]:
    """Yield a line for each row of a table. `name` has its suffix; default: that of the file.

    `max_bytes` limits a Parquet file, uncompressed; the caller limits the others.

    Raises:
        TableError: the file is no table, has no rows, or lacks a column.
        OSError: the file cannot be read.

    """
    name = name or str(file)
    index = -1
    for index, (row, rest) in enumerate(_with_rest(_rows(file, name, max_bytes), form)):
        try:
            line = form.to_line(index, row, rest)
        except KeyError as error:
            columns = ", ".join(row)
            message = f"{name}, row {index + 1}: there is no column {error}. The columns are {columns}."
            raise TableError(message) from error
        yield json.dumps(line, default=str).encode() + b"\n"
    if index < 0:
        raise TableError(f"{name} has no rows.")


def _with_rest(rows: Iterable[Row], form: LineForm) -> Iterator[tuple[Row, str]]:
    """Yield each row with what stands for `{*}`."""
    block: list[tuple[Row, dict[str, str]]] = []
    num_characters = 0
    for row in rows:
        fields = form.fields_of(row)
        if not form.reorder_fields:
            yield row, _to_object(fields.values())
            continue
        block.append((row, fields))
        num_characters += sum(map(len, fields.values()))
        if len(block) == ORDERED_ROWS or num_characters >= ORDERED_CHARACTERS:
            yield from _ordered(block)
            block, num_characters = [], 0
    yield from _ordered(block)


def _ordered(block: Sequence[tuple[Row, dict[str, str]]]) -> Iterator[tuple[Row, str]]:
    orders = order_fields([fields for _, fields in block])
    for (row, fields), order in zip(block, orders, strict=True):
        yield row, _to_object(fields[name] for name in order)


def _to_object(fields: Iterable[str]) -> str:
    return "{" + ", ".join(fields) + "}"


def kind_of(name: str) -> str:
    """Return the suffix that says how a table is written: `.parquet`, `.csv`, `.jsonl` or another."""
    return Path(name.removesuffix(".gz")).suffix


def _rows(file: Path, name: str, max_bytes: int | None) -> Iterator[Row]:
    kind = kind_of(name)
    if kind == ".parquet":
        yield from _parquet_rows(file, name, max_bytes)
        return
    if kind not in {".csv", ".jsonl"}:
        raise TableError(f"{name}: a template takes a .parquet, .csv or .jsonl file.")
    opened = gzip.open if name.endswith(".gz") else open
    with opened(file, "rt", encoding="utf-8-sig", newline="") as text:
        yield from (_csv_rows(name, text) if kind == ".csv" else _json_rows(name, text))


def _short_lines(name: str, text: IO[str]) -> Iterator[str]:
    while line := text.readline(MAX_CELL_CHARACTERS + 1):
        if len(line) > MAX_CELL_CHARACTERS:
            raise TableError(f"{name}: a line is longer than {MAX_CELL_CHARACTERS} characters.")
        yield line


def _csv_rows(name: str, text: IO[str]) -> Iterator[Row]:
    csv.field_size_limit(MAX_CELL_CHARACTERS)
    rows = csv.DictReader(_short_lines(name, text), strict=True)
    try:
        for row in rows:
            if None in row or None in row.values():
                raise TableError(
                    f"{name}, line {rows.line_num}: the row and the header differ in their number of cells."
                )
            yield row
    except csv.Error as error:
        raise TableError(f"{name}, line {rows.line_num}: this is not CSV: {error}") from error


def _json_rows(name: str, text: IO[str]) -> Iterator[Row]:
    for number, line in enumerate(_short_lines(name, text), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise TableError(f"{name}, line {number}: this is not JSON: {error}") from error
        if not isinstance(row, dict):
            raise TableError(f"{name}, line {number}: a line must be a JSON object.")
        yield row


def _parquet_rows(file: Path, name: str, max_bytes: int | None) -> Iterator[Row]:
    try:
        # Imported here, because it is large, and few need it.
        import pyarrow as pa  # noqa: PLC0415
        import pyarrow.parquet as pq  # noqa: PLC0415
    except ModuleNotFoundError:
        raise TableError(f"{name}: Parquet needs another library: install headrace[parquet].") from None
    try:
        with pq.ParquetFile(file) as table:
            groups = (table.metadata.row_group(i) for i in range(table.metadata.num_row_groups))
            if max_bytes is not None and sum(group.total_byte_size for group in groups) > max_bytes:
                raise TableError(f"{name}: is larger than {max_bytes} bytes, uncompressed.")
            for batch in table.iter_batches(batch_size=PARQUET_ROWS):
                yield from batch.to_pylist()
    # ValueError and OverflowError: of times that Python does not know.
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # of the disk, not of the content
            raise
        raise TableError(f"{name}: this is not Parquet: {error}") from error
