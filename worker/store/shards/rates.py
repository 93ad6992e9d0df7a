"""Measures the rate of a batch at each save, in smoothed output tokens per second."""

from datetime import timedelta

from sqlalchemy import Float, case, cast, func, or_, select, update
from sqlalchemy.orm import Session

from worker.contract.states import ShardState
from worker.store.requests import tally
from worker.store.rows.batches import BatchRow
from worker.store.rows.shards import ShardRow

MEASURED_EVERY = timedelta(seconds=2)
# After a longer gap the tokens since the last measurement do not tell the current rate.
MEASURED_WITHIN_SECONDS = 15.0
SMOOTHING_SECONDS = 15.0


def measure(session: Session, batch: BatchRow) -> None:
    """Measure the rate of a batch that is locked, `MEASURED_EVERY` at most."""
    if not tally.is_locked(batch):
        return
    session.flush()
    running = (
        select(func.coalesce(func.sum(ShardRow.running_tokens), 0))
        .where(ShardRow.batch_id == batch.id, ShardRow.state == ShardState.RUNNING)
        .scalar_subquery()
    )
    tokens = BatchRow.output_tokens + running
    elapsed = cast(func.extract("epoch", func.now() - BatchRow.measured_at), Float(53))
    rate = (tokens - BatchRow.measured_tokens) / elapsed
    before = BatchRow.tokens_per_second
    session.execute(
        update(BatchRow)
        .where(
            BatchRow.id == batch.id,
            or_(BatchRow.measured_at.is_(None), BatchRow.measured_at <= func.now() - MEASURED_EVERY),
        )
        .values(
            tokens_per_second=case(
                (or_(BatchRow.measured_at.is_(None), elapsed > MEASURED_WITHIN_SECONDS, rate <= 0), before),
                (before.is_(None), rate),
                else_=before + (1 - func.exp(-elapsed / SMOOTHING_SECONDS)) * (rate - before),
            ),
            measured_tokens=tokens,
            measured_at=func.now(),
        )
        .execution_options(synchronize_session=False)
    )
