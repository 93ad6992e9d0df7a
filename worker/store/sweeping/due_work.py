"""Finds out, by one statement, what a sweep has to do: most sweeps have nothing to do."""

from collections.abc import Mapping
from enum import StrEnum, auto
from typing import Any

from sqlalchemy import ColumnElement, Select, literal, select
from sqlalchemy.orm import InstrumentedAttribute, Session

from worker.store.batches import batches, responses, starts
from worker.store.experiments import experiments
from worker.store.requests import tally
from worker.store.rows.batches import BatchRow
from worker.store.rows.experiments import ExperimentRow
from worker.store.rows.requests import ResultRow
from worker.store.rows.responses import ResponseRow
from worker.store.rows.shards import ShardRow
from worker.store.rows.webhooks import DeliveryRow
from worker.store.shards import tickets, timeouts
from worker.store.watching import retention
from worker.store.webhooks import deliveries


class Due(StrEnum):
    """A kind of rows that a sweep works on."""

    EXPIRED_DELIVERIES = auto()
    PENDING_DELIVERIES = auto()  # perhaps not before a later time
    TIMEOUTS = auto()
    UNCOUNTED_RESULTS = auto()
    STOPPING_BATCHES = auto()
    STARTS = auto()
    EXPERIMENTS = auto()
    READY_SHARDS = auto()  # perhaps ticketed already
    UNSTORED_RESPONSES = auto()
    DELETED_BATCHES = auto()


# The rows of each kind, and the first column of the index that finds one of them without reading the table.
_ROWS: Mapping[Due, tuple[Select[*tuple[Any, ...]], InstrumentedAttribute[Any]]] = {
    Due.EXPIRED_DELIVERIES: (deliveries.EXPIRED, DeliveryRow.receiver),
    Due.PENDING_DELIVERIES: (deliveries.PENDING, DeliveryRow.receiver),
    Due.TIMEOUTS: (timeouts.DUE, ShardRow.timeout_at),
    Due.UNCOUNTED_RESULTS: (tally.UNCOUNTED, ResultRow.batch_id),
    Due.STOPPING_BATCHES: (batches.STOPPING, BatchRow.expires_at),
    Due.STARTS: (starts.DUE, BatchRow.start_after),
    Due.EXPERIMENTS: (experiments.OPEN, ExperimentRow.created_at),
    Due.READY_SHARDS: (tickets.READY, ShardRow.model_fingerprint),
    Due.UNSTORED_RESPONSES: (responses.UNSTORED, ResponseRow.batch_id),
    Due.DELETED_BATCHES: (retention.DELETED, BatchRow.created_at),
}


def _is_any(rows: Select[*tuple[Any, ...]], index: InstrumentedAttribute[Any]) -> ColumnElement[bool]:
    # Not EXISTS, for which Postgres ignores the order, and then may choose to read the whole table.
    first = rows.with_only_columns(literal(value=True)).order_by(index).limit(1)
    return first.scalar_subquery()


_FIND = select(*(_is_any(*rows).label(kind) for kind, rows in _ROWS.items()))


def find(session: Session) -> frozenset[Due]:
    """Return the kinds of which there are rows."""
    row = session.execute(_FIND).one()
    return frozenset(kind for kind, is_any in zip(_ROWS, row, strict=True) if is_any)
