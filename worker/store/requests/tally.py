"""Adds the Results of a batch to the counts and sums in its row. No other module does."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import ColumnElement, cast, func, select
from sqlalchemy.orm import InstrumentedAttribute, Session

from worker.store.requests.requests import MAX_OUTPUT_TOKENS
from worker.store.rows.batches import BatchRow
from worker.store.rows.requests import RequestRow, ResultRow
from worker.values.caching import Source
from worker.values.outcomes import FinishReason, Outcome

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
    BatchRow.completed_output_tokens: func.sum(ResultRow.num_output_tokens).filter(IS_COMPLETED),
    BatchRow.stored_bytes: func.sum(func.octet_length(ResultRow.output)),
    BatchRow.prefill_seconds: func.sum(ResultRow.prefill_seconds),
    BatchRow.decode_seconds: func.sum(ResultRow.decode_seconds),
    BatchRow.padding_seconds: func.sum(ResultRow.padding_seconds),
}


def add(session: Session, batch: BatchRow) -> None:
    """Add the Results that a locked batch's row does not count yet.

    The sequence of a batch's Results has no gaps, so these follow the number of those that it counts.
    """
    sums = [
        func.coalesce(cast(aggregate, column.type), 0).label(column.key)
        for column, aggregate in TALLY.items()
    ]
    added = session.execute(
        select(*sums)
        .select_from(ResultRow)
        .join(RequestRow, RequestRow.id == ResultRow.request_id)
        .join(BatchRow, BatchRow.id == ResultRow.batch_id)
        .where(ResultRow.batch_id == batch.id, ResultRow.sequence > batch.num_settled)
    ).one()
    for column, value in zip(TALLY, added, strict=True):
        setattr(batch, column.key, getattr(batch, column.key) + value)
