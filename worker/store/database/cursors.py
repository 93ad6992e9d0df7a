"""Pages of rows in order of their creation, each after the last row of the page before."""

from datetime import datetime
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Select, select, tuple_
from sqlalchemy.orm import InstrumentedAttribute, Session

Query = TypeVar("Query", bound=Select[*tuple[Any, ...]])


class UnknownCursorError(LookupError):
    """The row that a page should follow does not exist, or belongs to another tenant."""


def follow(
    session: Session,
    query: Query,
    order: tuple[InstrumentedAttribute[datetime], InstrumentedAttribute[str]],
    *,
    after: str | None,
    limit: int,
    is_newest_first: bool = True,
    is_visible: ColumnElement[bool] | None = None,
) -> Query:
    """Return the query of the first `limit` rows after the row with the id `after`; None: of the first.

    `order` are the columns of the creation time and of the id. `is_visible` is the condition of the rows
    that the caller may see, where the session does not filter by tenant. The row need not be one of the
    query's: it may have changed since the page before.

    Raises:
        UnknownCursorError: there is no row with the id `after`.

    """
    query = query.order_by(*(column.desc() if is_newest_first else column for column in order)).limit(limit)
    if after is None:
        return query
    created_at, row_id = order
    place = select(created_at, row_id).where(row_id == after)
    last = session.execute(place if is_visible is None else place.where(is_visible)).one_or_none()
    if last is None:
        raise UnknownCursorError(after)
    here, there = tuple_(*order), tuple(last)
    return query.where(here < there if is_newest_first else here > there)
