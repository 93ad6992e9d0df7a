"""Declares the parameter `after` of lists in pages, and cuts a page out of the rows found."""

from collections.abc import Sequence
from typing import Annotated, TypeVar

from fastapi import Query

from api.inputs.schema import Text

Row = TypeVar("Row")

After = Annotated[
    Text | None,
    Query(
        max_length=64,
        description="The last id of the page before. 404 with the code `unknown_cursor` if that is gone.",
    ),
]


def cut(found: Sequence[Row], limit: int) -> tuple[list[Row], bool]:
    """Return a page, and whether more follows; `found` is one row longer than the page if so."""
    return list(found[:limit]), len(found) > limit
