"""Builds views, which leave the store, from rows, which do not."""

from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeVar

from worker.store.rows.table import TableRow

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

View = TypeVar("View", bound="DataclassInstance")


def view_of(view: type[View], row: TableRow, **given: Any) -> View:
    """Return a view of a row: each field is the column of its name, or as given here."""
    columns = {field.name: getattr(row, field.name) for field in fields(view) if field.name not in given}
    return view(**columns, **given)
