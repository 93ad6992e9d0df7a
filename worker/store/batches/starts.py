"""Start batches at the time that their customers chose: until then they are paused."""

from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, case, func, select
from sqlalchemy.orm import Session

from worker.contract.states import BatchStatus
from worker.store.batches import journal
from worker.store.rows.batches import BatchRow

DUE = select(BatchRow).where(
    BatchRow.status.in_([BatchStatus.PENDING]),
    BatchRow.paused_at.is_not(None),
    BatchRow.start_after <= func.now(),
)


def columns_of(start_after: datetime | None) -> dict[str, Any]:
    """Return the columns of a new batch that must not start before this time; None: it may start at once."""
    if start_after is None:
        return {}
    return {"start_after": start_after, "paused_at": case((func.now() < start_after, func.now()))}


def end_of_window(start_after: datetime | None, window: timedelta) -> ColumnElement[Any]:
    """Return when the completion window of a new batch ends. It begins with the batch's start."""
    begin = func.now() if start_after is None else func.greatest(func.now(), start_after)
    return begin + window


def start_due(session: Session, *, limit: int) -> int:
    """Let batches run whose time has come; return their number. The caller issues their tickets."""
    due = session.scalars(
        DUE.order_by(BatchRow.start_after).limit(limit).with_for_update(key_share=True, skip_locked=True)
    ).all()
    for batch in due:
        batch.paused_at = None
        journal.changed(session, "batch due", batch, start_after=batch.start_after)
    return len(due)
