"""Reads requests as they were stored, beside their results."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from worker.store.rows.requests import RequestRow


@dataclass(frozen=True, slots=True)
class RequestView:
    """One request, as a client reads it beside its result."""

    prompt: str | None  # None: it has `inputs`, or its line was wrong
    inputs: list[Any] | None  # several prompts, or token ids
    max_tokens: int
    metadata: dict[str, Any] | None
    expected: dict[str, Any] | None  # worker.quality.expected.Expected


def of_results(session: Session, request_ids: Sequence[int]) -> dict[int, RequestView]:
    """Return these requests by id."""
    columns = (
        RequestRow.id,
        RequestRow.prompt,
        RequestRow.inputs,
        RequestRow.max_tokens,
        RequestRow.is_wrong_line,
        RequestRow.metadata_,
        RequestRow.expected,
    )
    rows = session.execute(select(*columns).where(RequestRow.id.in_(request_ids)))
    return {
        row.id: RequestView(
            None if row.inputs is not None or row.is_wrong_line else row.prompt,
            row.inputs,
            row.max_tokens,
            None if row.metadata_ is None else json.loads(row.metadata_),
            None if row.expected is None else json.loads(row.expected),
        )
        for row in rows
    }
