"""Writes rows as CSV or Parquet, a piece at a time, so that a table of any length fits the memory."""

import csv
import io
import json
from collections.abc import Iterable, Mapping
from enum import Enum, auto
from importlib.util import find_spec
from typing import Any, Protocol

CSV, PARQUET = "text/csv", "application/vnd.apache.parquet"
# A row group of a Parquet file: read in one go, and in memory until it is written.
GROUP_ROWS, GROUP_BYTES = 16_384, 16 << 20

Row = Mapping[str, Any]


class Column(Enum):
    """The type of a table's column. Every column may have empty cells."""

    TEXT = auto()
    INTEGER = auto()
    NUMBER = auto()
    TIME = auto()
    NUMBERS = auto()  # a list of them; in CSV as JSON


class Table(Protocol):
    """A table that is written piece by piece."""

    media_type: str

    def write(self, rows: Iterable[Row]) -> bytes:
        """Add rows; return the next bytes of the file, perhaps none yet."""
        ...

    def close(self) -> bytes:
        """End the table; return the last bytes of the file."""
        ...


class CsvTable:
    """A table as CSV in UTF-8, with a header (RFC 4180)."""

    media_type = CSV

    def __init__(self, columns: Mapping[str, Column]) -> None:
        self._text = io.StringIO(newline="")
        self._rows = csv.DictWriter(self._text, list(columns))
        self._rows.writeheader()

    def write(self, rows: Iterable[Row]) -> bytes:
        """Add rows; return their bytes."""
        self._rows.writerows({name: _to_cell(value) for name, value in row.items()} for row in rows)
        return self._take()

    def close(self) -> bytes:
        """End the table; return the header of one without rows."""
        return self._take()

    def _take(self) -> bytes:
        text = self._text.getvalue()
        self._text.seek(0)
        self._text.truncate()
        return text.encode()


def _to_cell(value: object) -> object:
    if hasattr(value, "isoformat"):
        return value.isoformat()
    return json.dumps(value) if isinstance(value, list) else value


def has_parquet() -> bool:
    """Return whether this machine has the library that reads and writes Parquet."""
    return find_spec("pyarrow") is not None


class ParquetTable:
    """A table as Parquet, compressed with Zstandard. Needs `headrace[parquet]`."""

    media_type = PARQUET

    def __init__(self, columns: Mapping[str, Column]) -> None:
        # Imported here, because a deployment that serves no Parquet need not have so large a library.
        import pyarrow as pa  # noqa: PLC0415
        import pyarrow.parquet as pq  # noqa: PLC0415

        types = {
            Column.TEXT: pa.string(),
            Column.INTEGER: pa.int64(),
            Column.NUMBER: pa.float64(),
            Column.TIME: pa.timestamp("us", tz="UTC"),
            Column.NUMBERS: pa.list_(pa.float64()),
        }
        self._schema = pa.schema([(name, types[column]) for name, column in columns.items()])
        self._from_rows = pa.RecordBatch.from_pylist
        self._to_table = pa.Table.from_batches
        self._file = _Written()
        self._writer = pq.ParquetWriter(self._file, self._schema, compression="zstd")
        self._waiting: list[Any] = []

    def write(self, rows: Iterable[Row]) -> bytes:
        """Add rows; return the bytes of row groups that are full."""
        self._waiting.append(self._from_rows([dict(row) for row in rows], schema=self._schema))
        num_rows = sum(batch.num_rows for batch in self._waiting)
        if num_rows >= GROUP_ROWS or sum(batch.nbytes for batch in self._waiting) >= GROUP_BYTES:
            self._write_group()
        return self._file.take()

    def close(self) -> bytes:
        """Write the last row group and the footer; return their bytes."""
        self._write_group()
        self._writer.close()
        return self._file.take()

    def _write_group(self) -> None:
        if self._waiting:
            self._writer.write_table(self._to_table(self._waiting, self._schema))
            self._waiting = []


def open_table(form: str, columns: Mapping[str, Column]) -> Table:
    """Return a new table in a format: `csv` or `parquet`."""
    return CsvTable(columns) if form == "csv" else ParquetTable(columns)


class _Written(io.RawIOBase):
    """A file that is written to, and whose bytes are taken away."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._offset = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        piece = bytes(data)
        self._pieces.append(piece)
        self._offset += len(piece)
        return len(piece)

    def tell(self) -> int:
        return self._offset

    def take(self) -> bytes:
        """Return the bytes written since the last call."""
        found = b"".join(self._pieces)
        self._pieces = []
        return found
