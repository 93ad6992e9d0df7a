"""Gives a Result to the identical requests of its shard, in the transaction that records it."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from sqlalchemy import case, func, insert, literal, select
from sqlalchemy.dialects.postgresql import distinct_on
from sqlalchemy.orm import Session, aliased

from worker.store.counts import meters
from worker.store.rows.batches import BatchRow
from worker.store.rows.requests import RequestRow, ResultRow
from worker.values.caching import Source
from worker.values.outcomes import Outcome
from worker.values.results import CUT, NewResult

# Columns that a copy does not take from the Result that it copies.
OWN_COLUMNS = frozenset(
    {
        *("request_id", "batch_id", "sequence", "created_at", "source"),
        *("num_cached_tokens", "prefill_seconds", "decode_seconds", "padding_seconds"),
    }
)


# The name, in place of a worker's, under which meters count copies that no worker has seen.
METER = "copies"
COMPUTED = (Source.ENGINE, Source.DUPLICATE)


def record(session: Session, batch: BatchRow, results: Sequence[NewResult]) -> None:
    """Give each new Result to the copies of its request, and count them in the locked batch."""
    originals = [result.request_id for result in results if _may_have_copies(batch, result)]
    if not originals:
        return
    first, copy, known = aliased(RequestRow), aliased(RequestRow), aliased(ResultRow)
    done = ResultRow
    taken = [column for column in ResultRow.__table__.columns if column.name not in OWN_COLUMNS]
    rows = (
        select(
            copy.id,
            copy.batch_id,
            func.row_number().over(order_by=copy.position) + literal(batch.num_settled),
            # Nothing was computed for a copy. A Result from a cache keeps its source.
            case((done.source == Source.ENGINE, Source.DUPLICATE.value), else_=done.source),
            done.num_prompt_tokens,
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
        .returning(ResultRow.request_id)
        .cte("inserted")
    )
    counts = session.execute(
        select(first.id, func.count())
        .select_from(inserted)
        .join(copy, copy.id == inserted.c.request_id)
        .join(first, (first.shard_id == copy.shard_id) & (first.digest == copy.digest))
        .where(first.id.in_(originals))
        .group_by(first.id)
    )
    by_id = {result.request_id: result for result in results}
    unmeasured: Counter[str] = Counter()
    for original, count in counts:
        result = by_id[original]
        _count(batch, result, count)
        # Its worker counts the copies that existed when it claimed the shard.
        later = count - (result.num_copies - 1)
        if later > 0 and result.outcome is Outcome.COMPLETED:
            unmeasured += _readings(later, result.num_prompt_tokens, result.num_output_tokens)
    meters.add(session, METER, unmeasured, model=batch.model_fingerprint)


def _readings(count: int, num_prompt_tokens: int, num_output_tokens: int) -> Counter[str]:
    return Counter(
        requests_completed=count,
        requests_deduplicated=count,
        input_tokens=count * num_prompt_tokens,
        output_tokens=count * num_output_tokens,
    )


def _may_have_copies(batch: BatchRow, result: NewResult) -> bool:
    """Return whether copies may wait for a Result; a file may bring some after its shard is claimed."""
    return result.num_copies > 1 or (
        batch.input_file_id is not None and result.outcome is not Outcome.CANCELLED
    )


def answer_later_ones(
    session: Session, batch: BatchRow, shard_ids: Collection[int], max_tokens: Mapping[bytes, int]
) -> None:
    """Give requests that have just joined these shards the completed Results of identical ones.

    `max_tokens` is the most that a request could generate, by digest. Counts the copies in the locked batch.
    """
    copy, first, known, done = aliased(RequestRow), aliased(RequestRow), aliased(ResultRow), ResultRow
    taken = [column for column in ResultRow.__table__.columns if column.name not in OWN_COLUMNS]
    answers = (
        select(first.shard_id, first.digest, first.id)
        .join(done, done.request_id == first.id)
        .where(
            first.shard_id.in_(shard_ids),
            first.digest.in_(list(max_tokens)),
            done.outcome == Outcome.COMPLETED,
        )
        .ext(distinct_on(first.shard_id, first.digest))
        .order_by(first.shard_id, first.digest, first.position)
        .subquery()
    )
    rows = (
        select(
            copy.id,
            copy.batch_id,
            func.row_number().over(order_by=copy.position) + literal(batch.num_settled),
            case((done.source.in_(COMPUTED), Source.DUPLICATE.value), else_=done.source),
            done.num_prompt_tokens,
            *taken,
        )
        .select_from(answers)
        .join(done, done.request_id == answers.c.id)
        .join(copy, (copy.shard_id == answers.c.shard_id) & (copy.digest == answers.c.digest))
        .outerjoin(known, known.request_id == copy.id)
        .where(known.request_id.is_(None))
    )
    columns = ["request_id", "batch_id", "sequence", "source", "num_cached_tokens"]
    inserted = (
        insert(ResultRow)
        .from_select([*columns, *(column.name for column in taken)], rows)
        .returning(
            ResultRow.request_id,
            ResultRow.source,
            ResultRow.num_prompt_tokens,
            ResultRow.num_output_tokens,
            ResultRow.finish_reason,
            func.coalesce(func.octet_length(ResultRow.output), 0).label("num_bytes"),
        )
        .cte("inserted")
    )
    found = session.execute(select(inserted, copy.digest).join(copy, copy.id == inserted.c.request_id)).all()
    unmeasured: Counter[str] = Counter()
    for row in found:
        unmeasured += _readings(1, row.num_prompt_tokens, row.num_output_tokens)
        batch.num_completed += 1
        batch.completed_output_tokens += row.num_output_tokens
        batch.num_cut += row.finish_reason == CUT
        batch.num_deduplicated += row.source == Source.DUPLICATE
        batch.num_cache_hits += row.source != Source.DUPLICATE
        batch.input_tokens += row.num_prompt_tokens
        batch.cached_tokens += row.num_prompt_tokens
        batch.output_tokens += row.num_output_tokens
        batch.settled_max_tokens += max_tokens[row.digest]
        batch.stored_bytes += row.num_bytes
    meters.add(session, METER, unmeasured, model=batch.model_fingerprint)


def _count(batch: BatchRow, original: NewResult, count: int) -> None:
    if original.outcome is Outcome.COMPLETED:
        batch.num_completed += count
        batch.completed_output_tokens += original.num_output_tokens * count
        batch.num_cut += count * original.is_cut
    batch.num_failed += count if original.outcome is Outcome.FAILED else 0
    batch.num_cancelled += count if original.outcome is Outcome.CANCELLED else 0
    if original.source is Source.ENGINE:
        batch.num_deduplicated += count
    else:
        batch.num_cache_hits += count
    batch.input_tokens += original.num_prompt_tokens * count
    batch.cached_tokens += original.num_prompt_tokens * count
    batch.output_tokens += original.num_output_tokens * count
    batch.settled_max_tokens += original.max_tokens * count
    batch.stored_bytes += len((original.output or "").encode()) * count
