"""Stores responses: what one request in OpenAI's newer form said, beside the batch that runs it."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import func, insert, select, update
from sqlalchemy.orm import Session

from worker.contract.states import LIVE_STATUSES
from worker.store.database.session import tenant_of
from worker.store.rows.batches import BatchRow
from worker.store.rows.responses import ResponseRow

# A client that waits for a response which is not stored has read it by this time after its end.
READ_WITHIN = timedelta(minutes=1)

UNSTORED = (
    select(ResponseRow.batch_id)
    .join(BatchRow, BatchRow.id == ResponseRow.batch_id)
    .where(
        ~ResponseRow.is_stored,
        BatchRow.status.not_in(LIVE_STATUSES),
        BatchRow.finished_at < func.now() - READ_WITHIN,
    )
)


@dataclass(frozen=True, slots=True)
class NewResponse:
    """A response whose batch is submitted in the same transaction."""

    batch_id: str
    request: dict[str, Any]
    items: list[Any]
    num_bytes: int  # of both, as JSON
    is_stored: bool = True


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """What a response was asked for."""

    batch_id: str
    request: dict[str, Any]
    items: list[Any]


def add(session: Session, new: NewResponse) -> datetime:
    """Insert a response; return when its batch was accepted. Its bytes count among those the batch stores."""
    session.execute(
        insert(ResponseRow).values(
            batch_id=new.batch_id,
            tenant_id=tenant_of(session),
            is_stored=new.is_stored,
            request=new.request,
            items=new.items,
        )
    )
    return session.scalars(
        update(BatchRow)
        .where(BatchRow.id == new.batch_id)
        .values(stored_bytes=BatchRow.stored_bytes + new.num_bytes)
        .returning(BatchRow.created_at)
        .execution_options(synchronize_session=False)
    ).one()


def get(session: Session, batch_id: str) -> StoredResponse | None:
    """Return the response of a batch; None: there is none, or it is not stored."""
    row = session.scalar(select(ResponseRow).where(ResponseRow.batch_id == batch_id, ResponseRow.is_stored))
    return None if row is None else StoredResponse(row.batch_id, row.request, row.items)


def hide(session: Session, batch_id: str) -> None:
    """Stop storing a response: nobody finds it any more, and it goes when its batch has ended."""
    session.execute(
        update(ResponseRow)
        .where(ResponseRow.batch_id == batch_id)
        .values(is_stored=False)
        .execution_options(synchronize_session=False)
    )


def unstored(session: Session, *, limit: int) -> Sequence[str]:
    """Return batches that have ended and whose response is not stored, once their client has read it."""
    return session.scalars(UNSTORED.limit(limit)).all()
