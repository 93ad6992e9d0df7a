"""Stores meter readings of processes: one row per process, minute and model; old rows are folded."""

from collections import Counter
from datetime import UTC, datetime, timedelta

from sqlalchemy import func, select, true
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from worker.contract.meters import Readings
from worker.store.counts.measured import Measured, measure
from worker.store.rows.meters import MeterRow

KEPT_BY_MINUTE = timedelta(hours=2)
FOLD_AT_ONCE = 1000
# Worker and minute of the rows that hold all older readings, one per model.
EVERYBODY = ""
ANCIENT = datetime(1970, 1, 1, tzinfo=UTC)


def add(session: Session, worker: str, readings: Readings, *, model: str | None = None) -> None:
    """Add the readings of a process since its last call, for the model that it runs."""
    counted = {name: value for name, value in readings.items() if value}
    if counted:
        minute = session.scalar(select(func.date_trunc("minute", func.now()))) or ANCIENT
        _add_to(session, worker, minute, model or "", counted)


def _add_to(session: Session, worker: str, minute: datetime, model: str, readings: Readings) -> None:
    # Two transactions that fold may meet here; the row lock keeps both counts.
    empty = insert(MeterRow).values(worker=worker, minute=minute, model=model, readings={})
    session.execute(empty.on_conflict_do_nothing())
    row = session.get_one(MeterRow, (worker, minute, model), with_for_update=True, populate_existing=True)
    row.readings = dict(Counter(row.readings) + Counter(readings))
    session.flush()


def measured(session: Session, *, minutes: int, model: str | None = None) -> Measured:
    """Return readings in total and by minute for the last `minutes` minutes, of one model or of all."""
    return measure(session, MeterRow, true() if model is None else MeterRow.model == model, minutes=minutes)


def fold_the_old(session: Session) -> None:
    """Move at most `FOLD_AT_ONCE` rows older than `KEPT_BY_MINUTE` into the sum of their model."""
    old = session.scalars(
        select(MeterRow)
        .where(MeterRow.minute < func.now() - KEPT_BY_MINUTE, MeterRow.minute > ANCIENT)
        .order_by(MeterRow.minute)
        .limit(FOLD_AT_ONCE)
        .with_for_update(skip_locked=True)
    ).all()
    if not old:
        return
    by_model: dict[str, Counter[str]] = {}
    for row in old:
        by_model.setdefault(row.model, Counter()).update(row.readings)
        session.delete(row)
    session.flush()
    for model, readings in sorted(by_model.items()):
        _add_to(session, EVERYBODY, ANCIENT, model, readings)
