"""Every table, for what must know them all: migrations, and keys between the files' tables."""

from worker.store import (
    access_tables,
    cache_tables,
    count_tables,
    file_tables,
    meter_tables,
    model_tables,
    tables,
    webhook_tables,
)

Owned = tables.Owned
METADATA = tables.Table.metadata

__all__ = [
    "METADATA",
    "Owned",
    "access_tables",
    "cache_tables",
    "count_tables",
    "file_tables",
    "meter_tables",
    "model_tables",
    "tables",
    "webhook_tables",
]
