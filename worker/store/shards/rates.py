"""Measures the rate of a batch at each save, in smoothed output tokens per second."""

from datetime import timedelta

from sqlalchemy import Float, bindparam, case, cast, func, or_, select, update
from sqlalchemy.orm import Session

from worker.contract.states import ShardState
from worker.store.requests import tally
from worker.store.rows.batches import BatchRow
from worker.store.rows.shards import ShardRow

MEASURED_EVERY = timedelta(seconds=2)
# After a longer gap the tokens since the last measurement do not tell the current rate.
MEASURED_WITHIN_SECONDS = 15.0
SMOOTHING_SECONDS = 15.0

_RUNNING = (
    select(func.coalesce(func.sum(ShardRow.running_tokens), 0))
    .where(ShardRow.batch_id == bindparam("of_batch"), ShardRow.state == ShardState.RUNNING)
    .scalar_subquery()
)
_TOKENS = BatchRow.output_tokens + _RUNNING
_ELAPSED = cast(func.extract("epoch", func.now() - BatchRow.measured_at), Float(53))
_RATE = (_TOKENS - BatchRow.measured_tokens) / _ELAPSED
_BEFORE = BatchRow.tokens_per_second
_MEASURE = (
    update(BatchRow)
    .where(
        BatchRow.id == bindparam("of_batch"),
        or_(BatchRow.measured_at.is_(None), BatchRow.measured_at <= func.now() - MEASURED_EVERY),
    )
    .values(
        tokens_per_second=case(
            (or_(BatchRow.measured_at.is_(None), _ELAPSED > MEASURED_WITHIN_SECONDS, _RATE <= 0), _BEFORE),
            (_BEFORE.is_(None), _RATE),
            else_=_BEFORE + (1 - func.exp(-_ELAPSED / SMOOTHING_SECONDS)) * (_RATE - _BEFORE),
        ),
        measured_tokens=_TOKENS,
        measured_at=func.now(),
    )
    .execution_options(synchronize_session=False)
)


def measure(session: Session, batch: BatchRow) -> None:
    """Measure the rate of a batch that is locked, `MEASURED_EVERY` at most."""
    if not tally.is_locked(batch):
        return
    session.flush()
    session.execute(_MEASURE, {"of_batch": batch.id})
