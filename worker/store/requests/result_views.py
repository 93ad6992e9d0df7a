"""Reads results, in order of completion or of the requests, or only their outputs."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import takewhile
from typing import Any

from sqlalchemy import cast, exists, func, or_, select
from sqlalchemy.dialects.postgresql import JSONPATH
from sqlalchemy.orm import Session

from worker.contract.states import BatchStatus
from worker.store.requests import models
from worker.store.requests.models import ServedModelView
from worker.store.rows.batches import BatchRow
from worker.store.rows.requests import RequestRow, ResultRow
from worker.store.rows.views import view_of
from worker.values.caching import Source
from worker.values.outcomes import Outcome
from worker.values.parsing import Parsing
from worker.values.results import DeviceSeconds, Output, Payload

_PARSING = func.coalesce(RequestRow.params, BatchRow.params)["parsing"]
# What `_to_views` takes.
VIEWED = (
    ResultRow,
    RequestRow.position,
    RequestRow.custom_id,
    RequestRow.endpoint,
    RequestRow.is_wrong_line,
    BatchRow.created_at,
    _PARSING,
)


@dataclass(frozen=True, slots=True)
class ResultView:
    """One result, as a client reads it."""

    request_id: int
    sequence: int
    position: int
    custom_id: str | None
    outcome: Outcome
    output: str | None
    finish_reason: str | None
    payload: Payload | None
    num_prompt_tokens: int
    num_cached_tokens: int
    num_output_tokens: int
    error_code: str | None
    error_message: str | None
    accepted_at: datetime  # its batch
    started_at: datetime | None  # when the engine first ran it; None: it never did
    created_at: datetime
    source: Source = Source.ENGINE
    similarity: float | None = None
    hit_is_right: bool | None = None
    seconds: DeviceSeconds = DeviceSeconds()
    model: ServedModelView | None = None  # the one that made it
    parsing: Parsing | None = None  # how its request wants outputs parsed
    endpoint: str | None = None  # of its line in a file; None: its batch's
    is_wrong_line: bool = False

    @property
    def latency(self) -> timedelta:
        """The time from the acceptance of its batch to this result."""
        return self.created_at - self.accepted_at

    @property
    def queue_wait(self) -> timedelta | None:
        """The time from the acceptance of its batch to the first Step that ran it."""
        return None if self.started_at is None else self.started_at - self.accepted_at


def page(session: Session, batch_id: str, *, after: int, limit: int) -> list[ResultView]:
    """Return at most `limit` results after sequence number `after`, in order of completion."""
    query = (
        select(*VIEWED)
        .join(RequestRow, RequestRow.id == ResultRow.request_id)
        .join(BatchRow, BatchRow.id == ResultRow.batch_id)
        .where(ResultRow.batch_id == batch_id, ResultRow.sequence > after)
        .order_by(ResultRow.sequence)
        .limit(limit)
    )
    return _to_views(session, [tuple(row) for row in session.execute(query)])


def page_of_input(session: Session, batch_id: str, *, after: int, limit: int) -> list[ResultView]:
    """Return at most `limit` results in order of the requests, without the first `after` requests.

    They end before the first request that has no result yet, so that a cursor never skips one.
    """
    query = (
        select(*VIEWED)
        .select_from(RequestRow)
        .join(BatchRow, BatchRow.id == RequestRow.batch_id)
        .outerjoin(ResultRow, (ResultRow.request_id == RequestRow.id) & ResultRow.sequence.is_not(None))
        .where(RequestRow.batch_id == batch_id, RequestRow.position >= after)
        .order_by(RequestRow.position)
        .limit(limit)
    )
    rows = [tuple(row) for row in session.execute(query)]
    return _to_views(session, list(takewhile(lambda row: row[0] is not None, rows)))


def _to_views(session: Session, rows: Sequence[tuple[Any, ...]]) -> list[ResultView]:
    made_by = models.of_results(session, {row.model_id for row, *_ in rows})
    return [
        view_of(
            ResultView,
            row,
            position=position,
            custom_id=custom_id,
            endpoint=endpoint,
            is_wrong_line=is_wrong_line,
            payload=None if row.payload is None else Payload.from_json(row.payload),
            seconds=DeviceSeconds(row.prefill_seconds, row.decode_seconds, row.padding_seconds),
            accepted_at=accepted_at,
            model=None if row.model_id is None else made_by.get(row.model_id),
            parsing=None if parsing is None else Parsing.from_json(parsing),
        )
        for row, position, custom_id, endpoint, is_wrong_line, accepted_at, parsing in rows
    ]


def has_news(session: Session, batch_id: str, *, after: int, in_input_order: bool = False) -> bool:
    """Return whether a page after cursor `after` has results, or the batch has ended or does not exist."""
    newer = exists().where(ResultRow.batch_id == batch_id, ResultRow.sequence > after)
    if in_input_order:
        newer = exists().where(
            RequestRow.batch_id == batch_id,
            RequestRow.position == after,
            ResultRow.request_id == RequestRow.id,
            ResultRow.sequence.is_not(None),
        )
    has_ended = BatchRow.status.in_([status for status in BatchStatus if status.is_terminal])
    found = session.scalar(select(or_(has_ended, newer)).where(BatchRow.id == batch_id))
    return found is not False


def outputs(session: Session, batch_id: str) -> list[Output]:
    """Return the output of every request of a batch, in order; None where there is none (yet)."""
    texts = func.jsonb_path_query_array(ResultRow.payload, cast("$.choices[*].text", JSONPATH))
    rows = session.execute(
        select(ResultRow.output, texts)
        .select_from(RequestRow)
        .outerjoin(ResultRow, ResultRow.request_id == RequestRow.id)
        .where(RequestRow.batch_id == batch_id)
        .order_by(RequestRow.position)
    )
    return [choices if choices and len(choices) > 1 else output for output, choices in rows]
