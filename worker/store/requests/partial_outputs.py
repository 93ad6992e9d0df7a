"""Keeps partial outputs of requests without a result; a crash loses only tokens after the last save."""

from collections.abc import Mapping, Sequence

from sqlalchemy import delete, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from worker.store.rows.requests import PartialOutputRow, ResultRow
from worker.values.results import PartialOutput, storable


def keep(session: Session, partial_outputs: Mapping[int, PartialOutput]) -> None:
    """Store partial outputs by request id, replacing earlier ones. The caller holds their shards."""
    if not partial_outputs:
        return
    statement = insert(PartialOutputRow)
    session.execute(
        statement.on_conflict_do_update(
            index_elements=[PartialOutputRow.request_id],
            set_={
                "model_id": statement.excluded.model_id,
                "token_ids": statement.excluded.token_ids,
                "output": statement.excluded.output,
            },
        ).values(
            [
                {
                    "request_id": request_id,
                    "model_id": one.model_id,
                    "token_ids": list(one.token_ids),
                    "output": storable(one.text),
                }
                for request_id, one in sorted(partial_outputs.items())
            ]
        )
    )


def forget(session: Session, request_ids: Sequence[int]) -> None:
    """Delete the partial outputs of requests that have their results now."""
    session.execute(delete(PartialOutputRow).where(PartialOutputRow.request_id.in_(request_ids)))


def forget_ended(session: Session, batch_id: str) -> None:
    """Delete the partial outputs of a batch's requests that have results."""
    has_result = (
        select(ResultRow.request_id)
        .where(ResultRow.request_id == PartialOutputRow.request_id, ResultRow.batch_id == batch_id)
        .exists()
    )
    session.execute(delete(PartialOutputRow).where(has_result))
