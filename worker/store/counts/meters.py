"""Stores meter readings of processes: one row per process, minute and model; old rows are folded."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sqlalchemy import Double, cast, func, select, true
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from worker.contract.meters import Readings
from worker.store.rows.meters import MeterRow

KEPT_BY_MINUTE = timedelta(hours=2)
FOLD_AT_ONCE = 1000
# Worker and minute of the rows that hold all older readings, one per model.
EVERYBODY = ""
ANCIENT = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class MinuteReadings:
    """The sum of all processes' readings in one minute."""

    minute: datetime
    readings: Readings


@dataclass(frozen=True, slots=True)
class Measured:
    """Readings since the first day and of the last minutes, the current one included."""

    total: Readings
    recent: Readings
    recent_seconds: float  # the time that `recent` covers
    minutes: Sequence[MinuteReadings]  # the oldest first


def add(session: Session, worker: str, readings: Readings, *, model: str | None = None) -> None:
    """Add the readings of a process since its last call, for the model that it runs."""
    counted = {name: value for name, value in readings.items() if value}
    if counted:
        minute = session.scalar(select(func.date_trunc("minute", func.now()))) or ANCIENT
        _add_to(session, worker, minute, model or "", counted)


def _add_to(session: Session, worker: str, minute: datetime, model: str, readings: Readings) -> None:
    # Two transactions that fold or count copies may meet here; the row lock keeps both counts.
    empty = insert(MeterRow).values(worker=worker, minute=minute, model=model, readings={})
    session.execute(empty.on_conflict_do_nothing())
    row = session.get_one(MeterRow, (worker, minute, model), with_for_update=True, populate_existing=True)
    row.readings = dict(Counter(row.readings) + Counter(readings))
    session.flush()


def measured(session: Session, *, minutes: int, model: str | None = None) -> Measured:
    """Return readings in total and by minute for the last `minutes` minutes, of one model or of all."""
    each = func.jsonb_each_text(MeterRow.readings).table_valued("key", "value")
    now, since = session.execute(
        select(func.now(), func.date_trunc("minute", func.now()) - timedelta(minutes=minutes - 1))
    ).one()
    rows = session.execute(
        select(
            func.greatest(MeterRow.minute, since - timedelta(minutes=1)).label("minute"),
            each.c.key,
            func.sum(cast(each.c.value, Double)),
        )
        .join(each, onclause=true())
        .where(true() if model is None else MeterRow.model == model)
        .group_by("minute", each.c.key)
    )
    by_minute: dict[datetime, dict[str, float]] = {}
    total: Counter[str] = Counter()
    recent: Counter[str] = Counter()
    for minute, name, value in rows:
        total[name] += value
        if minute >= since:
            recent[name] += value
            by_minute.setdefault(minute, {})[name] = value
    began = min(by_minute, default=now)
    return Measured(
        total=total,
        recent=recent,
        recent_seconds=(now - began).total_seconds(),
        minutes=[MinuteReadings(minute, by_minute[minute]) for minute in sorted(by_minute)],
    )


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
