"""Read batches made from files, each with its files: one, or a page of them."""

from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any

from sqlalchemy import bindparam
from sqlalchemy.orm import Session

from worker.contract.states import FilesStage
from worker.store.batches import batch_views
from worker.store.batches.batch_views import BatchView
from worker.store.batches.labels import ANY, Labels
from worker.store.database import cursors
from worker.store.rows.batches import BatchRow
from worker.store.rows.files import BatchFilesRow
from worker.store.rows.views import view_of


@dataclass(frozen=True, slots=True)
class BatchFilesView:
    """Current state of a batch's files."""

    stage: FilesStage
    endpoint: str
    input_file_id: str
    completion_window: str
    output_file_id: str | None
    error_file_id: str | None
    errors: list[dict[str, Any]] | None
    input_uri: str | None
    input_etag: str | None
    output_uri: str | None
    output_error: str | None
    read_at: datetime | None
    written_at: datetime | None
    cancelled_at: datetime | None


@dataclass(frozen=True, slots=True)
class FileBatchView:
    """Current state of a batch made from a file, and of its files."""

    batch: BatchView
    files: BatchFilesView


def get(session: Session, batch_id: str) -> FileBatchView | None:
    """Return a batch; None: there is none, or it was not made from a file."""
    found = session.execute(_view_by_id(), {"id": batch_id}).one_or_none()
    return None if found is None else _view(*found)


def page(session: Session, *, after: str | None, limit: int, labels: Labels = ANY) -> list[FileBatchView]:
    """Return the batches after batch `after`, newest first; raises UnknownCursorError."""
    order = (BatchRow.created_at, BatchRow.id)
    query = _views().where(*labels.conditions())
    query = cursors.follow(session, query, order, after=after, limit=limit)
    return [_view(*found) for found in session.execute(query)]


@cache
def _views() -> Any:
    return (
        batch_views.views()
        .add_columns(BatchFilesRow)
        .join(BatchFilesRow, BatchFilesRow.batch_id == BatchRow.id)
    )


@cache
def _view_by_id() -> Any:
    return _views().where(BatchRow.id == bindparam("id"))


def _view(
    batch: BatchRow,
    running: int,
    num_running_shards: int,
    uncounted: int,
    now: datetime,
    experiment_id: str | None,
    files: BatchFilesRow,
) -> FileBatchView:
    return FileBatchView(
        batch_views.to_view(batch, running, num_running_shards, uncounted, now, experiment_id),
        view_of(BatchFilesView, files, cancelled_at=batch.cancelled_at),
    )
