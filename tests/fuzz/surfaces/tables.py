"""Tables of strangers, which a template turns into lines: CSV, JSON lines, Parquet."""

import csv
import gzip
import io
import json
import zlib
from functools import cache
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from api.table_lines import LineForm, TableError, Template, lines_of
from tests.fuzz.chaos import Chaos
from tests.fuzz.surfaces.model import folder

ROWS: list[dict[str, Any]] = [
    {"id": "a", "text": "quick", "label": 1.5, "more": [1, 2]},
    {"id": "b", "text": 'brown, "fox"\n{x}', "label": None, "more": []},
]
PROMPTS = (
    "Label: {text}",
    "{{{id}}} {text}",
    "{text} {missing}",
    "{*}",
    "{id} {*} {*}",
    "plain",
    "{}",
    "{0}",
    "{text!r}",
    "{text:>9}",
    "{",
)
ENCODINGS = ("utf-8", "utf-8", "utf-8-sig", "utf-16", "latin-1")


@cache
def _parquet() -> bytes:
    written = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(ROWS), written)
    return written.getvalue()


def _csv(chaos: Chaos) -> bytes:
    written = io.StringIO(newline="")
    table = csv.DictWriter(written, list(ROWS[0]), dialect=chaos.choice(("excel", "excel-tab", "unix")))
    table.writeheader()
    table.writerows({**row, "text": chaos.text() or row["text"]} for row in ROWS)
    return written.getvalue().encode(chaos.choice(ENCODINGS), errors="replace")


def _json_lines(chaos: Chaos) -> bytes:
    return b"\n".join(chaos.spelled(chaos.spoiled(row)) for row in ROWS)


def tables(chaos: Chaos) -> bool:
    """Turn a table into lines."""
    kind = chaos.choice((".csv", ".csv", ".jsonl", ".jsonl", ".parquet"))
    data = {".csv": _csv, ".jsonl": _json_lines, ".parquet": lambda _: _parquet()}[kind](chaos)
    data = chaos.damaged(data, chaos.choice((0, 1, 3)))
    if kind != ".parquet" and chaos.random() < 0.2:
        kind, data = f"{kind}.gz", chaos.damaged(gzip.compress(data, 1), chaos.choice((0, 0, 2)))
    file = folder() / f"table{kind}"
    file.write_bytes(data)
    try:
        form = LineForm(
            Template(chaos.choice(PROMPTS)),
            {"model": "tiny"},
            custom_id=chaos.choice((None, None, "id")),
            is_chat=chaos.random() < 0.5,
            reorder_fields=chaos.random() < 0.2,
        )
        lines = list(lines_of(file, form))
    # The command tells each.
    except (TableError, OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        assert str(error)
        return False
    assert lines
    for line in lines:
        json.loads(line)
    return True
