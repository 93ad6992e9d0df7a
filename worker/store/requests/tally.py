"""Counts the Results of a batch: numbers them and adds them to its row and its tenant's usage.

Only a transaction that has the batch's lock counts, so the numbers have no gaps, a cursor never skips a
Result, and the counts are exact. A transaction without the lock stores Results without a number. Only
progress and forecasts use these before a later transaction with the lock counts them
(worker/store/shards/counting.py).
"""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    RowMapping,
    bindparam,
    cast,
    exists,
    func,
    literal,
    select,
    update,
)
from sqlalchemy.orm import InstrumentedAttribute, Session, object_session

from worker.contract.usage import COST, COUNTERS, SECONDS
from worker.store.counts import usage
from worker.store.database.session import prices_of
from worker.store.requests import batch_models, latencies
from worker.store.requests.new_results import IS_NEW, IS_OF_BATCH
from worker.store.requests.requests import MAX_OUTPUT_TOKENS
from worker.store.rows.batches import BatchRow
from worker.store.rows.requests import RequestRow, ResultRow
from worker.store.rows.shards import ShardRow
from worker.values.caching import Source
from worker.values.outcomes import FinishReason, Outcome

UNCOUNTED = select(ResultRow.batch_id).where(ResultRow.sequence.is_(None))
IS_COMPLETED = ResultRow.outcome == Outcome.COMPLETED
IS_CUT = IS_COMPLETED & (ResultRow.finish_reason == FinishReason.LENGTH)

# What new Results add to their batch: an aggregate over them for each column of its row.
TALLY: Mapping[InstrumentedAttribute[Any], ColumnElement[Any]] = {
    BatchRow.num_completed: func.count().filter(IS_COMPLETED),
    BatchRow.num_failed: func.count().filter(ResultRow.outcome == Outcome.FAILED),
    BatchRow.num_cancelled: func.count().filter(ResultRow.outcome == Outcome.CANCELLED),
    BatchRow.num_cut: func.count().filter(IS_CUT),
    BatchRow.num_deduplicated: func.count().filter(ResultRow.source == Source.DUPLICATE),
    BatchRow.num_cache_hits: func.count().filter(
        ResultRow.source.in_([Source.EXACT_CACHE, Source.SEMANTIC_CACHE])
    ),
    BatchRow.settled_max_tokens: func.sum(MAX_OUTPUT_TOKENS),
    BatchRow.input_tokens: func.sum(ResultRow.num_prompt_tokens),
    BatchRow.cached_tokens: func.sum(ResultRow.num_cached_tokens),
    BatchRow.output_tokens: func.sum(ResultRow.num_output_tokens),
    BatchRow.reasoning_tokens: func.sum(ResultRow.payload["num_reasoning_tokens"].as_integer()),
    BatchRow.completed_output_tokens: func.sum(ResultRow.num_output_tokens).filter(IS_COMPLETED),
    BatchRow.stored_bytes: func.sum(func.octet_length(ResultRow.output)),
    BatchRow.prefill_seconds: func.sum(ResultRow.prefill_seconds),
    BatchRow.decode_seconds: func.sum(ResultRow.decode_seconds),
    BatchRow.padding_seconds: func.sum(ResultRow.padding_seconds),
}
# More Results than this wait for the next transaction.
COUNTED_AT_ONCE = 5000
# What they add to usage beside this.
HITS = {
    "cache_hits_exact": func.count().filter(ResultRow.source == Source.EXACT_CACHE),
    "cache_hits_semantic": func.count().filter(ResultRow.source == Source.SEMANTIC_CACHE),
    "cache_checks": func.count().filter(ResultRow.hit_is_right.is_not(None)),
    "cache_checks_right": func.count().filter(ResultRow.hit_is_right.is_(True)),
}
# Readings of usage that have a column of the batch under another name.
COUNTED_AS = {
    "requests_completed": BatchRow.num_completed.key,
    "requests_failed": BatchRow.num_failed.key,
    "requests_cancelled": BatchRow.num_cancelled.key,
    "requests_deduplicated": BatchRow.num_deduplicated.key,
}

# Each save runs these. To build one takes Python longer than to run it, so they are built once.
_IS_BEHIND = select(exists().where(IS_OF_BATCH, ResultRow.sequence.is_(None)))
_OLDEST_FIRST = (ResultRow.created_at, ResultRow.request_id)
_UNCOUNTED = (
    select(ResultRow.request_id, func.row_number().over(order_by=_OLDEST_FIRST).label("place"))
    .where(IS_OF_BATCH, ResultRow.sequence.is_(None))
    .order_by(*_OLDEST_FIRST)
    .limit(bindparam("most", type_=BigInteger))
    .subquery()
)
_NUMBER = (
    update(ResultRow)
    .where(ResultRow.request_id == _UNCOUNTED.c.request_id)
    .values(sequence=bindparam("num_before", type_=BigInteger) + _UNCOUNTED.c.place)
    .returning(ResultRow.request_id)
    .execution_options(synchronize_session=False)
)
_SUMS = (
    select(
        *(
            func.coalesce(cast(aggregate, column.type), 0).label(column.key)
            for column, aggregate in TALLY.items()
        ),
        *(aggregate.label(name) for name, aggregate in HITS.items()),
    )
    .select_from(ResultRow)
    .join(RequestRow, RequestRow.id == ResultRow.request_id)
    .join(BatchRow, BatchRow.id == ResultRow.batch_id)
    .where(IS_NEW)
)
_SUMS_BY_MODEL = (
    _SUMS.add_columns(ShardRow.model_fingerprint.label("model"))
    .join(ShardRow, ShardRow.id == RequestRow.shard_id)
    .group_by(ShardRow.model_fingerprint)
)


def is_locked(batch: BatchRow) -> bool:
    """Return whether this transaction has the batch's lock; without it, the row belongs to no session."""
    return object_session(batch) is not None


def last_number(batch: BatchRow) -> int | None:
    """Return the number of a batch's last Result; None if it is not locked, as new ones get no number."""
    return batch.num_settled if is_locked(batch) else None


def place(batch: BatchRow, order: InstrumentedAttribute[int]) -> ColumnElement[int | None]:
    """Return the numbers of new Results that are inserted by a query, in this order."""
    return func.row_number().over(order_by=order) + literal(last_number(batch), BigInteger())


def is_behind(session: Session, batch_id: str) -> bool:
    """Return whether a batch has Results that are not counted yet."""
    return bool(session.scalar(_IS_BEHIND, {"of_batch": batch_id}))


def batches_behind(session: Session, *, limit: int) -> list[str]:
    """Return at most `limit` batches that have Results which are not counted yet."""
    return list(session.scalars(UNCOUNTED.distinct().limit(limit)))


def catch_up(session: Session, batch: BatchRow) -> None:
    """Count at most `COUNTED_AT_ONCE` Results that others left uncounted, the oldest first.

    Does nothing if this transaction does not have the batch's lock.
    """
    if not is_locked(batch):
        return
    some = {"of_batch": batch.id, "num_before": batch.num_settled, "most": COUNTED_AT_ONCE}
    numbered = session.execute(_NUMBER, some)
    if numbered.first() is not None:
        add(session, batch)


def add(session: Session, batch: BatchRow) -> None:
    """Add the numbered Results that a locked batch's row does not count yet, at this process's prices.

    The numbers of a batch's Results have no gaps, so these follow the number of those that it counts. Does
    nothing if this transaction does not have the batch's lock.
    """
    if not is_locked(batch):
        return
    num_before = batch.num_settled
    for model, added in _sums(session, batch, num_before):
        if not any(added[name] for name in COUNTED_AS.values()):
            continue
        for column in TALLY:
            setattr(batch, column.key, getattr(batch, column.key) + added[column.key])
        cost = prices_of(session).cost(
            device_seconds=sum(added[name] for name in SECONDS),
            input_tokens=added["input_tokens"],
            output_tokens=added["output_tokens"],
        )
        batch.cost_billionths += cost
        readings = {name: added[COUNTED_AS.get(name, name)] for name in (*COUNTERS, *SECONDS)}
        only = model if batch.is_mixed else None
        readings |= {COST: cost, **latencies.read(session, batch, after=num_before, model=only)}
        usage.add(session, batch.tenant_id, readings, model=model)
        if batch.is_mixed and model is not None:
            batch_models.add_results(session, batch.id, model, {**added, "cost_billionths": cost})


def _sums(session: Session, batch: BatchRow, num_before: int) -> list[tuple[str | None, RowMapping]]:
    """Return what a batch's Results after this number add, by the model that had to run them."""
    new = {"of_batch": batch.id, "num_before": num_before}
    if not batch.is_mixed:
        return [(batch.model_fingerprint, session.execute(_SUMS, new).mappings().one())]
    return [(one["model"], one) for one in session.execute(_SUMS_BY_MODEL, new).mappings().all()]
