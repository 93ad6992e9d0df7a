"""A Result passed on to the identical requests of its shard, in the transaction that records it."""

from collections.abc import Sequence

from sqlalchemy import case, func, insert, literal, select
from sqlalchemy.orm import Session, aliased

from worker.contract.caching import Source
from worker.contract.results import NewResult
from worker.contract.states import Outcome
from worker.store.tables import BatchRow, RequestRow, ResultRow

# What a copy does not take over from the Result it copies.
OWN_COLUMNS = frozenset(
    {
        *("request_id", "batch_id", "sequence", "created_at", "source"),
        *("num_cached_tokens", "prefill_seconds", "decode_seconds", "padding_seconds"),
    }
)


def record(session: Session, batch: BatchRow, results: Sequence[NewResult]) -> None:
    """Give copies of requests that have just got a Result the same one; count them in the locked batch."""
    originals = [result.request_id for result in results if result.num_copies > 1]
    if not originals:
        return
    first, copy, known = aliased(RequestRow), aliased(RequestRow), aliased(ResultRow)
    done = ResultRow
    taken = [column for column in ResultRow.__table__.columns if column.name not in OWN_COLUMNS]
    is_failed = done.outcome == Outcome.FAILED
    rows = (
        select(
            copy.id,
            copy.batch_id,
            func.row_number().over(order_by=copy.position) + literal(batch.num_settled),
            # Nothing was computed for a copy; what comes from a cache keeps saying so.
            case((done.source == Source.ENGINE, Source.DUPLICATE.value), else_=done.source),
            case((is_failed, 0), else_=done.num_prompt_tokens),
            *taken,
        )
        .select_from(done)
        .join(first, first.id == done.request_id)
        .join(copy, (copy.shard_id == first.shard_id) & (copy.digest == first.digest) & (copy.id != first.id))
        .outerjoin(known, known.request_id == copy.id)
        .where(done.request_id.in_(originals), known.request_id.is_(None))
    )
    columns = ["request_id", "batch_id", "sequence", "source", "num_cached_tokens"]
    inserted = (
        insert(ResultRow)
        .from_select([*columns, *(column.name for column in taken)], rows)
        .returning(
            ResultRow.request_id,
            ResultRow.outcome,
            ResultRow.source,
            ResultRow.num_prompt_tokens,
            ResultRow.num_cached_tokens,
            ResultRow.num_output_tokens,
        )
        .cte("inserted")
    )
    one = inserted.c
    counts = session.execute(
        select(
            one.outcome,
            one.source,
            func.count(),
            func.sum(one.num_prompt_tokens),
            func.sum(one.num_cached_tokens),
            func.sum(one.num_output_tokens),
            func.sum(RequestRow.max_tokens),
        )
        .join(RequestRow, RequestRow.id == one.request_id)
        .group_by(one.outcome, one.source)
    )
    for outcome, source, count, prompt_tokens, cached_tokens, output_tokens, max_tokens in counts:
        batch.num_completed += count if outcome is Outcome.COMPLETED else 0
        batch.num_failed += count if outcome is Outcome.FAILED else 0
        batch.num_cancelled += count if outcome is Outcome.CANCELLED else 0
        if source is Source.DUPLICATE:
            batch.num_deduplicated += count
        else:
            batch.num_cache_hits += count
        batch.input_tokens += int(prompt_tokens)
        batch.cached_tokens += int(cached_tokens)
        batch.output_tokens += int(output_tokens)
        batch.settled_max_tokens += int(max_tokens)
