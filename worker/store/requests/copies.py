"""Gives a Result to the identical requests of its shard, in the transaction that records it."""

from collections.abc import Collection, Sequence

from sqlalchemy import Select, case, insert, select
from sqlalchemy.dialects.postgresql import distinct_on
from sqlalchemy.orm import Session, aliased

from worker.store.requests import tally
from worker.store.rows.batches import BatchRow
from worker.store.rows.requests import RequestRow, ResultRow
from worker.store.rows.table import Copier, columns_copied_by
from worker.values.caching import Source
from worker.values.outcomes import Outcome
from worker.values.results import NewResult

COMPUTED = (Source.ENGINE, Source.DUPLICATE)


def record(session: Session, batch: BatchRow, results: Sequence[NewResult]) -> None:
    """Give each new Result to the copies of its request, and count them if the batch is locked."""
    originals = [result.request_id for result in results if _may_have_copies(batch, result)]
    if originals:
        _answer(session, batch, select(RequestRow.id).where(RequestRow.id.in_(originals)))


def _may_have_copies(batch: BatchRow, result: NewResult) -> bool:
    """Return whether copies may wait for a Result; a file may bring some after its shard is claimed."""
    return result.num_copies > 1 or (
        batch.input_file_id is not None and result.outcome is not Outcome.CANCELLED
    )


def answer_later_ones(
    session: Session, batch: BatchRow, shard_ids: Collection[int], digests: Collection[bytes]
) -> None:
    """Give requests that have just joined these shards the completed Results of identical ones.

    `digests` are those of the new requests. Counts the copies in the locked batch.
    """
    originals = (
        select(RequestRow.id)
        .join(ResultRow, ResultRow.request_id == RequestRow.id)
        .where(
            RequestRow.shard_id.in_(shard_ids),
            RequestRow.digest.in_(digests),
            ResultRow.outcome == Outcome.COMPLETED,
        )
        .ext(distinct_on(RequestRow.shard_id, RequestRow.digest))
        .order_by(RequestRow.shard_id, RequestRow.digest, RequestRow.position)
    )
    _answer(session, batch, originals)


def _answer(session: Session, batch: BatchRow, originals: Select[int]) -> None:
    """Give the Results of these requests to the identical ones without a Result, and count these."""
    first, copy, known, done = aliased(RequestRow), aliased(RequestRow), aliased(ResultRow), ResultRow
    taken = columns_copied_by(Copier.DUPLICATE, ResultRow)
    is_copy = (copy.shard_id == first.shard_id) & (copy.digest == first.digest)
    rows = (
        select(
            copy.id,
            copy.batch_id,
            tally.place(batch, copy.position),
            # Nothing was computed for a copy. A Result from a cache keeps its source.
            case((done.source.in_(COMPUTED), Source.DUPLICATE.value), else_=done.source),
            done.num_prompt_tokens,
            *(getattr(done, name) for name in taken),
        )
        .select_from(done)
        .join(first, first.id == done.request_id)
        .join(copy, is_copy)
        .outerjoin(known, known.request_id == copy.id)
        .where(first.id.in_(originals), known.request_id.is_(None))
    )
    columns = ["request_id", "batch_id", "sequence", "source", "num_cached_tokens"]
    session.execute(insert(ResultRow).from_select([*columns, *taken], rows))
    tally.add(session, batch)
