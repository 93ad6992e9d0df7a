"""Builds views, which leave the store, from rows, which do not."""

from dataclasses import fields
from functools import cache
from typing import Any, TypeVar

from worker.store.rows.table import TableRow

View = TypeVar("View")


def view_of(view: type[View], row: TableRow, **given: Any) -> View:
    """Return a view of a row: each field is the column of its name, or as given here."""
    return view(**{name: getattr(row, name) for name in _names(view) if name not in given}, **given)


@cache
def _names(view: Any) -> tuple[str, ...]:
    return tuple(field.name for field in fields(view))
