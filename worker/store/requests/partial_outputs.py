"""What requests without a result had generated when last saved: a crash costs only what came after."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import delete, func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from worker.store.rows.requests import PartialOutputRow, ResultRow


@dataclass(frozen=True, slots=True)
class PartialOutput:
    """Output tokens of one request, by a model of `served_models`, and their text."""

    model_id: int | None
    token_ids: Sequence[int]
    text: str


def keep(session: Session, partial_outputs: Mapping[int, PartialOutput]) -> None:
    """Store partial outputs by request id, in place of earlier ones. The caller holds their shards."""
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
                "saved_at": func.now(),
            },
        ).values(
            [
                {
                    "request_id": request_id,
                    "model_id": one.model_id,
                    "token_ids": list(one.token_ids),
                    "output": one.text.replace("\x00", "\N{REPLACEMENT CHARACTER}"),
                }
                for request_id, one in sorted(partial_outputs.items())
            ]
        )
    )


def forget(session: Session, request_ids: Sequence[int]) -> None:
    """Drop what is kept of requests that have their results now."""
    session.execute(delete(PartialOutputRow).where(PartialOutputRow.request_id.in_(request_ids)))


def forget_ended(session: Session, batch_id: str) -> None:
    """Drop what is kept of a batch's requests that have their results now."""
    has_result = (
        select(ResultRow.request_id)
        .where(ResultRow.request_id == PartialOutputRow.request_id, ResultRow.batch_id == batch_id)
        .exists()
    )
    session.execute(delete(PartialOutputRow).where(has_result))
