"""Keeps the turns of tool loops without a Result, so that a recorded call is never made again."""

from collections.abc import Mapping, Sequence

from sqlalchemy import BigInteger, Double, Select, Subquery, cast, delete, func, select
from sqlalchemy.dialects.postgresql import aggregate_order_by, insert
from sqlalchemy.orm import Session

from worker.store.database import clock
from worker.store.requests import partial_outputs
from worker.store.rows.requests import RequestRow, ResultRow, ToolTurnRow
from worker.values.results import ToolTurn

# Sums over the turns of a request, by the columns of its Result.
SUMS = {
    "num_prompt_tokens": BigInteger,
    "num_cached_tokens": BigInteger,
    "num_output_tokens": BigInteger,
    "prefill_seconds": Double,
    "decode_seconds": Double,
    "padding_seconds": Double,
}


def keep(session: Session, turns: Mapping[int, ToolTurn]) -> None:
    """Store the last turn of some requests, by request id, or its answers. The caller holds their shards.

    What a request had generated of the turn before it ended is deleted.
    """
    if not turns:
        return
    ordered = sorted(turns.items())
    begun = partial_outputs.forget(session, [request_id for request_id, _ in ordered])
    started = clock.to_times(session, [turn.started_at for _, turn in ordered])
    statement = insert(ToolTurnRow).values(
        [
            {
                "request_id": request_id,
                "number": turn.number,
                "said": turn.to_json(),
                "started_at": begun.get(request_id, started_at),
            }
            for (request_id, turn), started_at in zip(ordered, started, strict=True)
        ]
    )
    session.execute(
        statement.on_conflict_do_update(
            index_elements=[ToolTurnRow.request_id, ToolTurnRow.number],
            set_={"said": statement.excluded.said},
        )
    )


def of(session: Session, request_ids: Sequence[int]) -> dict[int, list[ToolTurn]]:
    """Return the recorded turns of these requests, in order."""
    if not request_ids:
        return {}
    rows = session.scalars(
        select(ToolTurnRow)
        .where(ToolTurnRow.request_id.in_(request_ids))
        .order_by(ToolTurnRow.request_id, ToolTurnRow.number)
    )
    found: dict[int, list[ToolTurn]] = {}
    for row in rows:
        found.setdefault(row.request_id, []).append(ToolTurn.from_json(row.said))
    return found


def forget_ended(session: Session, batch_id: str) -> None:
    """Delete the turns of a batch's requests that have Results."""
    has_result = (
        select(ResultRow.request_id)
        .where(ResultRow.request_id == ToolTurnRow.request_id, ResultRow.batch_id == batch_id)
        .exists()
    )
    session.execute(delete(ToolTurnRow).where(has_result))


def summed(batch_id: str) -> Subquery:
    """Return the query of what the turns of a batch's requests say and have used, by request."""
    said = ToolTurnRow.said
    query: Select[tuple[int]] = select(ToolTurnRow.request_id)
    return (
        query.add_columns(
            func.jsonb_build_object(
                "tool_turns", func.jsonb_agg(aggregate_order_by(said, ToolTurnRow.number))
            ).label("payload"),
            func.min(ToolTurnRow.started_at).label("started_at"),
            *(func.sum(cast(said[name].astext, type_)).label(name) for name, type_ in SUMS.items()),
        )
        .join(RequestRow, RequestRow.id == ToolTurnRow.request_id)
        .where(RequestRow.batch_id == batch_id)
        .group_by(ToolTurnRow.request_id)
        .subquery()
    )
