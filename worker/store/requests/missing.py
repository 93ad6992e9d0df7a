"""Writes the results of requests that will not run, or not to their end."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Subquery, bindparam, case, func, insert, literal, select
from sqlalchemy.dialects.postgresql import distinct_on
from sqlalchemy.orm import Session

from worker.store.requests import partial_outputs, tally, tool_turns
from worker.store.requests.requests import IDENTITY
from worker.store.rows.batches import BatchRow
from worker.store.rows.requests import PartialOutputRow, RequestRow, ResultRow
from worker.values.caching import Source
from worker.values.outcomes import Outcome
from worker.values.results import RequestError


def settle(
    session: Session,
    batch: BatchRow,
    outcome: Outcome,
    error: RequestError,
    *,
    shard_ids: Sequence[int] | None = None,
    request_ids: Sequence[int] | None = None,
) -> None:
    """Give this outcome to a batch's requests without a Result: all, those of locked shards, or these.

    A request's partial output becomes its output and that of its copies, and the recorded turns of its tool
    loop become part of its Result. Counts them if the batch is locked.
    """
    kept, turns = _kept_outputs(batch.id), tool_turns.summed(batch.id)
    columns = _columns(kept, turns, outcome, error)
    place = tally.place(batch, RequestRow.position)
    missing = (
        select(RequestRow.id, RequestRow.batch_id, place, *columns.values())
        .outerjoin(ResultRow, ResultRow.request_id == RequestRow.id)
        .outerjoin(kept, (kept.c.shard_id == RequestRow.shard_id) & (kept.c.identity == IDENTITY))
        .outerjoin(turns, turns.c.request_id == RequestRow.id)
        .where(RequestRow.batch_id == batch.id, ResultRow.request_id.is_(None))
    )
    if shard_ids is not None:
        missing = missing.where(RequestRow.shard_id.in_(shard_ids))
    if request_ids is not None:
        missing = missing.where(RequestRow.id.in_(request_ids))
    session.execute(insert(ResultRow).from_select(["request_id", "batch_id", "sequence", *columns], missing))
    tally.add(session, batch)
    partial_outputs.forget_ended(session, batch.id)
    tool_turns.forget_ended(session, batch.id)


def fail(session: Session, batch: BatchRow, errors: Mapping[int, RequestError]) -> None:
    """Fail requests of a locked batch that have never run, by position, and count them in the batch."""
    at = (RequestRow.batch_id == batch.id, RequestRow.position.in_(errors))
    found = session.execute(
        select(RequestRow.id, RequestRow.position).where(*at).order_by(RequestRow.position)
    )
    session.execute(
        insert(ResultRow),
        [
            {
                "request_id": request_id,
                "batch_id": batch.id,
                "sequence": sequence,
                "outcome": Outcome.FAILED,
                "num_prompt_tokens": 0,
                "num_cached_tokens": 0,
                "num_output_tokens": 0,
                "error_code": errors[position].code,
                "error_message": errors[position].message,
            }
            for sequence, (request_id, position) in enumerate(found, batch.num_settled + 1)
        ],
    )
    tally.add(session, batch)


def _columns(
    kept: Subquery, turns: Subquery, outcome: Outcome, error: RequestError
) -> dict[str, ColumnElement[Any]]:
    """Return the columns of the Result of a request that may have a partial output, and turns of a loop."""
    has_output = kept.c.request_id.is_not(None)
    is_copy = has_output & (kept.c.request_id != RequestRow.id)
    used = {name: func.coalesce(turns.c[name], 0) for name in tool_turns.SUMS}
    own = {
        "num_prompt_tokens": case((has_output, RequestRow.num_prompt_tokens), else_=0),
        "num_cached_tokens": case((is_copy, RequestRow.num_prompt_tokens), else_=0),
        "num_output_tokens": func.coalesce(func.cardinality(kept.c.token_ids), 0),
    }
    return {
        "outcome": bindparam("outcome", outcome.value),
        "output": kept.c.text,
        "finish_reason": case(
            (has_output, literal("cancelled" if outcome is Outcome.CANCELLED else "error"))
        ),
        "model_id": kept.c.model_id,
        **used,
        **{name: count + used[name] for name, count in own.items()},
        "payload": turns.c.payload,
        "error_code": bindparam("code", error.code),
        "error_message": bindparam("message", error.message),
        "source": case((is_copy, literal(Source.DUPLICATE.value)), else_=literal(Source.ENGINE.value)),
        "started_at": func.least(kept.c.started_at, turns.c.started_at),
    }


def _kept_outputs(batch_id: str) -> Subquery:
    """Return the query of a batch's partial outputs, one by shard and identity of identical requests."""
    identity = IDENTITY.label("identity")
    return (
        select(
            PartialOutputRow.request_id,
            PartialOutputRow.text,
            PartialOutputRow.token_ids,
            PartialOutputRow.model_id,
            PartialOutputRow.started_at,
            RequestRow.shard_id,
            identity,
        )
        .join(RequestRow, RequestRow.id == PartialOutputRow.request_id)
        .where(RequestRow.batch_id == batch_id)
        .ext(distinct_on(RequestRow.shard_id, identity))
        .order_by(RequestRow.shard_id, identity, RequestRow.position)
        .subquery()
    )
