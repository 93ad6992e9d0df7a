"""Writes the results of requests that will not run, or not to their end."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Subquery, bindparam, case, func, insert, literal, select
from sqlalchemy.dialects.postgresql import distinct_on
from sqlalchemy.orm import Session

from worker.store.requests import partial_outputs
from worker.store.requests.requests import IDENTITY
from worker.store.rows.requests import PartialOutputRow, RequestRow, ResultRow
from worker.values.caching import Source
from worker.values.outcomes import Outcome


@dataclass(frozen=True, slots=True)
class Missing:
    """Counts of requests that got a result without running to their end, and of their tokens."""

    count: int
    num_copies: int  # of them, with the partial output of an identical request
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    max_tokens: int


def settle(
    session: Session,
    *,
    batch_id: str,
    first_sequence: int,
    outcome: Outcome,
    code: str,
    message: str,
    shard_ids: Sequence[int] | None = None,
    request_ids: Sequence[int] | None = None,
) -> Missing:
    """Give this result to every request of a locked batch (or of its shards, or these) that has none.

    A request's partial output becomes its output and that of its copies.
    """
    kept = _kept_outputs(batch_id)
    has_output = kept.c.request_id.is_not(None)
    is_copy = has_output & (kept.c.request_id != RequestRow.id)
    missing = (
        select(
            RequestRow.id,
            RequestRow.batch_id,
            func.row_number().over(order_by=RequestRow.position) + literal(first_sequence - 1),
            bindparam("outcome", outcome.value),
            kept.c.text,
            case((has_output, literal("cancelled" if outcome is Outcome.CANCELLED else "error"))),
            kept.c.model_id,
            case((has_output, RequestRow.num_prompt_tokens), else_=0),
            case((is_copy, RequestRow.num_prompt_tokens), else_=0),
            func.coalesce(func.cardinality(kept.c.token_ids), 0),
            bindparam("code", code),
            bindparam("message", message),
            case((is_copy, literal(Source.DUPLICATE.value)), else_=literal(Source.ENGINE.value)),
        )
        .outerjoin(ResultRow, ResultRow.request_id == RequestRow.id)
        .outerjoin(kept, (kept.c.shard_id == RequestRow.shard_id) & (kept.c.identity == IDENTITY))
        .where(RequestRow.batch_id == batch_id, ResultRow.request_id.is_(None))
    )
    if shard_ids is not None:
        missing = missing.where(RequestRow.shard_id.in_(shard_ids))
    if request_ids is not None:
        missing = missing.where(RequestRow.id.in_(request_ids))
    columns = [
        "request_id",
        "batch_id",
        "sequence",
        "outcome",
        "output",
        "finish_reason",
        "model_id",
        "num_prompt_tokens",
        "num_cached_tokens",
        "num_output_tokens",
        "error_code",
        "error_message",
        "source",
    ]
    inserted = (
        insert(ResultRow)
        .from_select(columns, missing)
        .returning(
            ResultRow.request_id,
            ResultRow.num_prompt_tokens,
            ResultRow.num_cached_tokens,
            ResultRow.num_output_tokens,
            ResultRow.source,
        )
        .cte("inserted")
    )
    sums = [
        func.coalesce(func.sum(column), 0)
        for column in (
            inserted.c.num_prompt_tokens,
            inserted.c.num_cached_tokens,
            inserted.c.num_output_tokens,
            RequestRow.max_tokens,
        )
    ]
    count, num_copies, *tokens = session.execute(
        select(func.count(), func.count().filter(inserted.c.source == Source.DUPLICATE), *sums)
        .select_from(inserted)
        .join(RequestRow, RequestRow.id == inserted.c.request_id)
    ).one()
    given = Missing(count, num_copies, *map(int, tokens))
    if given.output_tokens:
        partial_outputs.forget_ended(session, batch_id)
    return given


def _kept_outputs(batch_id: str) -> Subquery:
    """Return the query of a batch's partial outputs, one by shard and identity of identical requests."""
    identity = IDENTITY.label("identity")
    return (
        select(
            PartialOutputRow.request_id,
            PartialOutputRow.text,
            PartialOutputRow.token_ids,
            PartialOutputRow.model_id,
            RequestRow.shard_id,
            identity,
        )
        .join(RequestRow, RequestRow.id == PartialOutputRow.request_id)
        .where(RequestRow.batch_id == batch_id)
        .ext(distinct_on(RequestRow.shard_id, identity))
        .order_by(RequestRow.shard_id, identity, RequestRow.position)
        .subquery()
    )
