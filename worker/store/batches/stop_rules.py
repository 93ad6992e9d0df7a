"""Applies a batch's stop rules: its limits of failed requests and of tokens."""

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from worker.contract.states import BatchStatus, ShardState
from worker.store.batches import batches
from worker.store.requests import tally
from worker.store.rows.batches import BatchRow
from worker.store.rows.shards import ShardRow
from worker.values.results import RequestError


def apply(session: Session, batch: BatchRow) -> None:
    """Ask a batch to stop, as a cancel does, if it is locked and one of its stop rules applies."""
    if not tally.is_locked(batch) or batch.status not in {BatchStatus.PENDING, BatchStatus.PROCESSING}:
        return
    broken = _broken(session, batch)
    if broken is None:
        return
    batches.stop(session, batch, broken)


def _broken(session: Session, batch: BatchRow) -> RequestError | None:
    if batch.max_failed is not None and batch.num_failed > batch.max_failed:
        return RequestError(
            "max_failed_exceeded",
            f"{batch.num_failed} requests have failed, and the batch's `max_failed` is {batch.max_failed}",
        )
    if batch.max_total_tokens is None or batch.num_settled == batch.num_requests:
        return None
    session.flush()
    running = session.scalar(
        select(func.coalesce(func.sum(ShardRow.running_tokens), 0)).where(
            ShardRow.batch_id == batch.id, ShardRow.state == ShardState.RUNNING
        )
    )
    spent = batch.input_tokens + batch.output_tokens + int(running or 0)
    if spent < batch.max_total_tokens:
        return None
    message = f"the batch has used {spent} tokens, and its `max_total_tokens` is {batch.max_total_tokens}"
    return RequestError("max_total_tokens_reached", message)
