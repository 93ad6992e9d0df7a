"""Keeps partial outputs of requests without a result; a crash loses only tokens after the last save."""

from collections.abc import Mapping, Sequence
from datetime import datetime

from sqlalchemy import delete, func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from worker.store.database import clock
from worker.store.rows.requests import PartialOutputRow, ResultRow
from worker.values.results import PartialOutput, storable


def keep(session: Session, partial_outputs: Mapping[int, PartialOutput]) -> None:
    """Store partial outputs by request id, replacing earlier ones. The caller holds their shards."""
    if not partial_outputs:
        return
    started = clock.to_times(session, [one.started_at for _, one in sorted(partial_outputs.items())])
    statement = insert(PartialOutputRow)
    session.execute(
        statement.on_conflict_do_update(
            index_elements=[PartialOutputRow.request_id],
            set_={
                "model_id": statement.excluded.model_id,
                "token_ids": statement.excluded.token_ids,
                "output": statement.excluded.output,
                "started_at": func.least(PartialOutputRow.started_at, statement.excluded.started_at),
            },
        ).values(
            [
                {
                    "request_id": request_id,
                    "model_id": one.model_id,
                    "token_ids": list(one.token_ids),
                    "output": storable(one.text),
                    "started_at": started_at,
                }
                for (request_id, one), started_at in zip(
                    sorted(partial_outputs.items()), started, strict=True
                )
            ]
        )
    )


def forget(session: Session, request_ids: Sequence[int]) -> dict[int, datetime]:
    """Delete the partial outputs of requests that get their results; return when each was first run."""
    gone = session.execute(
        delete(PartialOutputRow)
        .where(PartialOutputRow.request_id.in_(request_ids))
        .returning(PartialOutputRow.request_id, PartialOutputRow.started_at)
    )
    return {request_id: started_at for request_id, started_at in gone if started_at is not None}


def forget_ended(session: Session, batch_id: str) -> None:
    """Delete the partial outputs of a batch's requests that have results."""
    has_result = (
        select(ResultRow.request_id)
        .where(ResultRow.request_id == PartialOutputRow.request_id, ResultRow.batch_id == batch_id)
        .exists()
    )
    session.execute(delete(PartialOutputRow).where(has_result))
