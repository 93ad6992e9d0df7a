"""Counts the usage of each tenant: one row for each transaction that adds to it, folded later."""

from datetime import date, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Date, Double, Numeric, cast, delete, func, insert, select, true
from sqlalchemy import case as sql_case
from sqlalchemy.orm import Session

from worker.contract.meters import Readings
from worker.store.counts.measured import Measured, measure
from worker.store.rows.access import TenantRow
from worker.store.rows.usage import UsageRow

KEPT_BY_MINUTE = timedelta(hours=2)
FOLDED_FOR = timedelta(days=2)  # rows as old as this are folded already
FOLD_AT_ONCE = 10_000

_ADD = insert(UsageRow).values(minute=func.date_trunc("minute", func.now()))


def add(session: Session, tenant_id: str, readings: Readings, *, model: str | None = None) -> None:
    """Add readings to the usage of a tenant and model."""
    counted = {name: value for name, value in readings.items() if value}
    if counted:
        session.execute(_ADD, {"tenant_id": tenant_id, "model": model or "", "readings": counted})


def measured(session: Session, *, minutes: int) -> Measured:
    """Return readings in total and of the last `minutes` minutes, of the session's tenant or of all."""
    return measure(session, UsageRow, minutes=minutes)


def by_day(session: Session, *, first: date, last: date) -> dict[date, Readings]:
    """Return the readings of each day (UTC) with any, of the session's tenant or all; the oldest first."""
    return dict(sorted(_by(session, cast(UsageRow.minute, Date), *_within(first, last)).items()))


def by_tenant(
    session: Session, *, first: date | None = None, last: date | None = None
) -> dict[str, Readings]:
    """Return the readings of each tenant with any, on these days (UTC) or since the first, by tenant id."""
    return dict(sorted(_by(session, UsageRow.tenant_id, *_within(first, last)).items()))


def _within(first: date | None, last: date | None) -> list[ColumnElement[bool]]:
    since = [] if first is None else [UsageRow.minute >= first]
    return since if last is None else [*since, UsageRow.minute < last + timedelta(days=1)]


def _by(session: Session, group: Any, *conditions: ColumnElement[bool]) -> dict[Any, Readings]:
    each = func.jsonb_each_text(UsageRow.readings).table_valued("key", "value")
    rows = session.execute(
        select(group.label("group"), each.c.key, func.sum(cast(each.c.value, Double)))
        .select_from(UsageRow)
        .join(each, onclause=true())
        .where(*conditions)
        .group_by("group", each.c.key)
    )
    found: dict[Any, dict[str, float]] = {}
    for one, name, value in rows:
        found.setdefault(one, {})[name] = value
    return dict(found)


def named_tenants(session: Session, *, limit: int) -> list[str]:
    """Return the tenants that have series of their own, the oldest: one that had some always keeps them."""
    query = select(TenantRow.id).order_by(TenantRow.created_at, TenantRow.id).limit(limit)
    return list(session.scalars(query))


def fold(session: Session) -> None:
    """Replace the rows of a tenant, model and past minute by their sum; old ones by that of their day."""
    this_minute = func.date_trunc("minute", func.now())
    is_old = UsageRow.minute < func.now() - KEPT_BY_MINUTE
    began = sql_case((is_old, func.date_trunc("day", UsageRow.minute)), else_=UsageRow.minute)
    group = (UsageRow.tenant_id, began, UsageRow.model)
    several = (
        select(UsageRow.id, func.count().over(partition_by=group).label("rows"))
        .where(UsageRow.minute < this_minute, UsageRow.minute >= func.now() - FOLDED_FOR)
        .subquery()
    )
    some = (
        select(UsageRow.id)
        .where(UsageRow.id.in_(select(several.c.id).where(several.c.rows > 1).limit(FOLD_AT_ONCE)))
        .with_for_update(skip_locked=True)
    )
    ids = session.scalars(some).all()
    if not ids:
        return
    gone = (
        delete(UsageRow)
        .where(UsageRow.id.in_(ids))
        .returning(UsageRow.tenant_id, began.label("began"), UsageRow.model, UsageRow.readings)
        .cte("gone")
    )
    each = func.jsonb_each_text(gone.c.readings).table_valued("key", "value")
    keys = (gone.c.tenant_id, gone.c.began, gone.c.model)
    sums = (
        select(*keys, each.c.key, func.sum(cast(each.c.value, Numeric)).label("value"))
        .select_from(gone)
        .join(each, onclause=true())
        .group_by(*keys, each.c.key)
        .subquery()
    )
    folded = select(
        sums.c.tenant_id, sums.c.began, sums.c.model, func.jsonb_object_agg(sums.c.key, sums.c.value)
    ).group_by(sums.c.tenant_id, sums.c.began, sums.c.model)
    session.execute(insert(UsageRow).from_select(["tenant_id", "minute", "model", "readings"], folded))
