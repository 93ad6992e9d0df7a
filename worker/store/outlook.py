"""What an estimate is made of: output lengths that were seen lately, and the work that is waiting."""

from dataclasses import dataclass

from sqlalchemy import func, select, true
from sqlalchemy.orm import Session

from worker.contract.states import LIVE_STATUSES, Outcome, ShardState
from worker.store.tables import BatchRow, ResultRow, ShardRow

LEARNED_FROM_BATCHES = 20
RESULTS_A_BATCH = 64


@dataclass(frozen=True, slots=True)
class Backlog:
    """What live batches still have to do, at most."""

    num_requests: int
    prompt_tokens: int
    max_output_tokens: int


def recent_lengths(session: Session) -> list[list[int | None]]:
    """Return output lengths of each of the last batches, from all over it; None: its limit cut the output."""
    recent = (
        select(BatchRow.id, BatchRow.num_completed)
        .where(
            BatchRow.finished_at.is_not(None),
            BatchRow.results_dropped_at.is_(None),
            BatchRow.num_completed > 0,
        )
        .order_by(BatchRow.finished_at.desc())
        .limit(LEARNED_FROM_BATCHES)
        .subquery()
    )
    # Results are in order of completion, the short ones first: every so many of them, not the first ones.
    stride = func.greatest(1, recent.c.num_completed // RESULTS_A_BATCH)
    every = (
        func.generate_series(1, recent.c.num_completed, stride)
        .table_valued("sequence")
        .render_derived(name="every")
        .lateral()
    )
    rows = session.execute(
        select(recent.c.id, ResultRow.num_output_tokens, ResultRow.finish_reason == "length")
        .select_from(recent)
        .join(every, true())
        .join(ResultRow, (ResultRow.batch_id == recent.c.id) & (ResultRow.sequence == every.c.sequence))
        .where(ResultRow.outcome == Outcome.COMPLETED)
    )
    by_batch: dict[str, list[int | None]] = {}
    for batch_id, length, is_cut in rows:
        by_batch.setdefault(batch_id, []).append(None if is_cut else length)
    return list(by_batch.values())


def backlog(session: Session, *, priority: int) -> Backlog:
    """Return the work of live batches that goes before a new one of such a priority."""
    ahead = (BatchRow.status.in_(LIVE_STATUSES), BatchRow.priority >= priority)
    settled = BatchRow.num_completed + BatchRow.num_failed + BatchRow.num_cancelled
    num_requests, prompt_tokens, max_output_tokens = session.execute(
        select(
            func.coalesce(func.sum(BatchRow.num_requests - settled), 0),
            func.coalesce(func.sum(BatchRow.num_prompt_tokens - BatchRow.input_tokens), 0),
            func.coalesce(func.sum(BatchRow.max_output_tokens - BatchRow.settled_max_tokens), 0),
        ).where(*ahead)
    ).one()
    running = session.scalar(
        select(func.coalesce(func.sum(ShardRow.running_tokens), 0)).where(
            ShardRow.state == ShardState.RUNNING, ShardRow.priority >= priority
        )
    )
    left = max_output_tokens - (running or 0)
    return Backlog(int(num_requests), max(0, int(prompt_tokens)), max(0, int(left)))
