"""Imports every table, for migrations and for foreign keys between tables of different modules."""

from worker.store.rows import access as access_tables
from worker.store.rows import cache as cache_tables
from worker.store.rows import counts as count_tables
from worker.store.rows import experiments as experiment_tables
from worker.store.rows import files as file_tables
from worker.store.rows import meters as meter_tables
from worker.store.rows import models as model_tables
from worker.store.rows import responses as response_tables
from worker.store.rows import scaling as scaling_tables
from worker.store.rows import table as tables
from worker.store.rows import usage as usage_tables
from worker.store.rows import webhooks as webhook_tables
from worker.store.rows import workers as worker_tables

Owned = tables.Owned
METADATA = tables.TableRow.metadata

__all__ = [
    "METADATA",
    "Owned",
    "access_tables",
    "cache_tables",
    "count_tables",
    "experiment_tables",
    "file_tables",
    "meter_tables",
    "model_tables",
    "response_tables",
    "scaling_tables",
    "tables",
    "usage_tables",
    "webhook_tables",
    "worker_tables",
]
