"""Sums Readings that rows hold by minute."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, Double, cast, func, select, true
from sqlalchemy.orm import Session

from worker.contract.meters import Readings
from worker.store.rows.meters import MeterRow
from worker.store.rows.usage import UsageRow


@dataclass(frozen=True, slots=True)
class MinuteReadings:
    """The sum of all readings of one minute."""

    minute: datetime
    readings: Readings


@dataclass(frozen=True, slots=True)
class Measured:
    """Readings since the first day and of the last minutes, the current one included."""

    total: Readings
    recent: Readings
    recent_seconds: float  # the time that `recent` covers
    minutes: Sequence[MinuteReadings]  # the oldest first


def measure(
    session: Session, table: type[MeterRow | UsageRow], *conditions: ColumnElement[bool], minutes: int
) -> Measured:
    """Return the readings of a table's rows in total and by minute for the last `minutes` minutes."""
    each = func.jsonb_each_text(table.readings).table_valued("key", "value")
    now, since = session.execute(
        select(func.now(), func.date_trunc("minute", func.now()) - timedelta(minutes=minutes - 1))
    ).one()
    rows = session.execute(
        select(
            func.greatest(table.minute, since - timedelta(minutes=1)).label("minute"),
            each.c.key,
            func.sum(cast(each.c.value, Double)),
        )
        .select_from(table)
        .join(each, onclause=true())
        .where(*conditions)
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
