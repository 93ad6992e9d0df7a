"""Reads batches: one, several or a page of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from functools import cache
from typing import Any

from sqlalchemy import ARRAY, Select, Text, any_, bindparam, func, select, true
from sqlalchemy.orm import Session

from worker.contract.access import NOBODY
from worker.contract.states import BatchStatus, Lane, ShardState
from worker.store.batches.labels import ANY, Labels
from worker.store.database import cursors
from worker.store.requests import batch_models
from worker.store.requests.requests import MAX_OUTPUT_TOKENS
from worker.store.rows.batches import BatchRow
from worker.store.rows.experiments import ExperimentRow
from worker.store.rows.requests import RequestRow, ResultRow
from worker.store.rows.shards import ShardRow
from worker.store.rows.views import view_of
from worker.values.results import DeviceSeconds

# Of batches, with what is summed up beside each: `to_view` takes a row.
ViewQuery = Select[BatchRow, int, int, int, datetime, str | None]

_OWNER = select(BatchRow.tenant_id).where(BatchRow.id == bindparam("id"))  # each poll runs it


@dataclass(frozen=True, slots=True)
class ModelPart:
    """What one of its models has to run of a mixed batch, without lines that are not read yet."""

    model_name: str
    model_fingerprint: str
    num_requests: int
    num_prompt_tokens: int
    max_output_tokens: int
    num_completed: int
    num_failed: int
    num_cancelled: int
    num_cut: int
    settled_max_tokens: int
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    completed_output_tokens: int
    cost_billionths: int
    running_tokens: int
    num_running_shards: int

    @property
    def num_pending(self) -> int:
        """The number of its requests that have no result yet."""
        return self.num_requests - self.num_completed - self.num_failed - self.num_cancelled


@dataclass(frozen=True, slots=True)
class BatchView:
    """Snapshot of a batch, with the tokens of its running requests."""

    id: str
    tenant_id: str
    status: BatchStatus
    callback_url: str | None
    model_name: str | None  # None: any worker may run it
    model_fingerprint: str | None
    priority: int
    name: str | None
    metadata: dict[str, Any]
    endpoint: str | None
    input_file_id: str | None
    num_unread: int
    num_requests: int
    num_completed: int
    num_failed: int
    num_cancelled: int
    num_prompt_tokens: int
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    reasoning_tokens: int
    max_output_tokens: int
    settled_max_tokens: int
    running_tokens: int
    cost_billionths: int
    num_deduplicated: int
    num_cache_hits: int
    seconds: DeviceSeconds
    created_at: datetime
    started_at: datetime | None
    expires_at: datetime | None
    cancelled_at: datetime | None  # when the cancel was asked for
    finished_at: datetime | None
    results_dropped_at: datetime | None
    read_at: datetime
    paused_at: datetime | None
    start_after: datetime | None
    max_failed: int | None
    max_total_tokens: int | None
    error_code: str | None
    error_message: str | None
    retry_of: str | None
    completed_output_tokens: int
    num_cut: int
    tokens_per_second: float | None
    num_running_shards: int
    experiment_id: str | None
    is_mixed: bool = False
    parts: tuple[ModelPart, ...] = ()  # of a mixed batch, by model

    def by_model(self) -> "Sequence[BatchView]":
        """Return a view for each model that has work left; the batch itself if it is not mixed."""
        if not self.is_mixed:
            return [self]
        num_read = sum(part.num_requests for part in self.parts)
        return [self._of(part, num_read) for part in self.parts if part.num_pending]

    def _of(self, part: ModelPart, num_read: int) -> "BatchView":
        num_unread = round(self.num_unread * part.num_requests / num_read)
        counts = {name.name: getattr(part, name.name) for name in fields(part)}
        counts["num_requests"] += num_unread
        return replace(
            self, **counts, num_unread=num_unread, tokens_per_second=None, is_mixed=False, parts=()
        )

    @property
    def num_settled(self) -> int:
        """The number of requests that have a result."""
        return self.num_completed + self.num_failed + self.num_cancelled

    @property
    def num_pending(self) -> int:
        """The number of requests that have no result yet."""
        return self.num_requests - self.num_settled

    @property
    def is_scheduled(self) -> bool:
        """Return whether it waits for the time of its start."""
        is_paused = self.paused_at is not None and not self.status.is_terminal
        return is_paused and self.start_after is not None

    @property
    def is_paused(self) -> bool:
        """Return whether it waits until its customer resumes it."""
        return self.paused_at is not None and not self.status.is_terminal and not self.is_scheduled

    @property
    def progress(self) -> float:
        """The share, 0 to 1, of the tokens the batch may need that are generated or no longer needed.

        Of a batch that stopped before its end: the share of its requests that ran to theirs.
        """
        if self.status is BatchStatus.COMPLETED:
            return 1.0
        if self.status.is_terminal:
            return (self.num_completed + self.num_failed) / max(1, self.num_requests)
        if not self.max_output_tokens:  # only readings, or no line read from its file yet
            return self.num_settled / self.num_requests
        # The lines that are still in the file count as much as the average of the others.
        expected = self.max_output_tokens * self.num_requests / (self.num_requests - self.num_unread)
        return min(1.0, (self.settled_max_tokens + self.running_tokens) / expected)


def get(session: Session, batch_id: str) -> BatchView | None:
    """Return the batch as it stands now, or None."""
    return get_many(session, [batch_id]).get(batch_id)


def owner(session: Session, batch_id: str) -> str | None:
    """Return the id of the tenant whose batch it is, or None."""
    return session.scalar(_OWNER, {"id": batch_id})


def get_many(session: Session, batch_ids: Sequence[str]) -> dict[str, BatchView]:
    """Return batches as they stand now, by id."""
    found = to_views(session, _views_by_id(), {"ids": list(batch_ids)})
    return {view.id: view for view in found}


def page(
    session: Session,
    *,
    after: str | None,
    limit: int,
    status: BatchStatus | None = None,
    labels: Labels = ANY,
) -> list[BatchView]:
    """Return batches of the batch lane that follow batch `after`, the newest first.

    Raises:
        UnknownCursorError: there is no batch `after`.

    """
    query = views().where(BatchRow.lane == Lane.BATCH, BatchRow.tenant_id != NOBODY, *labels.conditions())
    if status is not None:
        query = query.where(BatchRow.status == status)
    order = (BatchRow.created_at, BatchRow.id)
    query = cursors.follow(session, query, order, after=after, limit=limit)
    return to_views(session, query)


def page_of_endpoint(
    session: Session, endpoint: str, *, after: str | None, before: str | None, limit: int
) -> list[BatchView]:
    """Return batches of an endpoint: after batch `after`, newest first, or before `before`, oldest first.

    Raises:
        UnknownCursorError: there is no batch `after`, or `before`.

    """
    query = views().where(BatchRow.endpoint == endpoint, BatchRow.tenant_id != NOBODY)
    order = (BatchRow.created_at, BatchRow.id)
    query = cursors.follow(
        session, query, order, after=before or after, limit=limit, is_newest_first=before is None
    )
    return to_views(session, query)


@cache
def views() -> ViewQuery:
    """Return the query that `to_views` takes, of all batches."""
    running = (
        select(
            func.coalesce(func.sum(ShardRow.running_tokens), 0).label("tokens"), func.count().label("shards")
        )
        .where(ShardRow.batch_id == BatchRow.id, ShardRow.state == ShardState.RUNNING)
        .lateral()
    )
    # Tokens of Results that no transaction has counted yet: their requests no longer run, so without them
    # progress would fall. One lookup each, because for a join Postgres might read all requests.
    tokens = select(MAX_OUTPUT_TOKENS).where(RequestRow.id == ResultRow.request_id)
    uncounted = (
        select(func.coalesce(func.sum(tokens.correlate(BatchRow, ResultRow).scalar_subquery()), 0))
        .where(ResultRow.batch_id == BatchRow.id, ResultRow.sequence.is_(None))
        .correlate(BatchRow)
        .scalar_subquery()
    )
    its_experiment = select(ExperimentRow.id).where(ExperimentRow.batch_id == BatchRow.id).scalar_subquery()
    columns = (BatchRow, running.c.tokens, running.c.shards, uncounted, func.now(), its_experiment)
    return select(*columns).select_from(BatchRow).join(running, true())


@cache
def _views_by_id() -> ViewQuery:
    return views().where(BatchRow.id == any_(bindparam("ids", type_=ARRAY(Text))))


def to_views(session: Session, query: ViewQuery, given: Mapping[str, Any] | None = None) -> list[BatchView]:
    """Return the views of the batches that a query like `views` selects, in its order."""
    found = [to_view(*one) for one in session.execute(query, given)]
    mixed = [view.id for view in found if view.is_mixed]
    if not mixed:
        return found
    parts = _parts(session, mixed)
    return [replace(view, parts=parts.get(view.id, ())) for view in found]


def _parts(session: Session, batch_ids: Sequence[str]) -> dict[str, tuple[ModelPart, ...]]:
    key = (ShardRow.batch_id, ShardRow.model_fingerprint)
    running = {
        (batch_id, model): (int(tokens), num_shards)
        for batch_id, model, tokens, num_shards in session.execute(
            select(*key, func.sum(ShardRow.running_tokens), func.count())
            .where(ShardRow.batch_id.in_(batch_ids), ShardRow.state == ShardState.RUNNING)
            .group_by(*key)
        )
    }
    found: dict[str, tuple[ModelPart, ...]] = {}
    for batch_id, rows in batch_models.rows(session, batch_ids).items():
        parts = []
        for row in rows:
            tokens, num_shards = running.get((batch_id, row.model_fingerprint), (0, 0))
            parts.append(view_of(ModelPart, row, running_tokens=tokens, num_running_shards=num_shards))
        found[batch_id] = tuple(parts)
    return found


def to_view(
    row: BatchRow,
    running: int,
    num_running_shards: int,
    uncounted: int,
    read_at: datetime,
    experiment_id: str | None,
) -> BatchView:
    """Return the view, without parts, of a batch: its row, and sums over running shards and new Results."""
    return view_of(
        BatchView,
        row,
        parts=(),
        metadata=row.metadata_,
        seconds=DeviceSeconds(row.prefill_seconds, row.decode_seconds, row.padding_seconds),
        settled_max_tokens=row.settled_max_tokens + int(uncounted),
        running_tokens=int(running),
        num_running_shards=num_running_shards,
        read_at=read_at,
        experiment_id=experiment_id,
    )
