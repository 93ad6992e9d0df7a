"""Backups: second runs of the last requests of a shard, by an idle worker that ends them sooner.

The worker that holds the shard runs on. Both save under the fence of its claim, and lock the shard to do so:
a request gets the first Result that is saved. A backup adds completed Results and nothing else. What is
cancelled, fails or is out of time is the holder's to say, and so are the lease, the progress and the partial
outputs. Once every request has its Result the shard is finished, and the next save of each run says so.
"""

from dataclasses import dataclass

from sqlalchemy import ColumnElement, Double, and_, cast, func, or_, select, update
from sqlalchemy.orm import Session

from worker.contract.models import ServedModel
from worker.contract.states import BatchStatus, Lane, ShardState
from worker.store.batches import batches, journal, locks
from worker.store.requests import requests
from worker.store.requests.models import may_run
from worker.store.requests.requests import MAX_OUTPUT_TOKENS
from worker.store.rows.batches import BatchRow
from worker.store.rows.requests import PartialOutputRow, RequestRow, ResultRow
from worker.store.rows.shards import ShardRow
from worker.store.shards.shards import Claim

# With more shards than this in progress, none is a straggler.
MAX_SHARDS = 16


@dataclass(frozen=True, slots=True)
class Straggler:
    """A shard that another worker runs and that may have a backup; of its requests without a Result, sums."""

    shard_id: int
    fence: int
    num_left: int
    prompt_tokens: int
    running_tokens: int  # generated so far
    stored_tokens: int  # of these, those that a backup begins with
    max_tokens: int  # the limits of the outputs
    output_tokens: float | None  # that each is expected to generate; None: not known yet


def stragglers(session: Session, *, worker: str, model: str | None = None) -> list[Straggler]:
    """Return shards that others hold and of which a worker of this model may run a backup.

    Returns none while more than `MAX_SHARDS` are in progress. Requests that are streamed, or whose calls of
    tools a worker makes, are never run twice, and neither is what a worker has died on.
    """
    running = (ShardRow.state == ShardState.RUNNING, ShardRow.lane == Lane.BATCH, may_run(model))
    ids = session.scalars(select(ShardRow.id).where(*running).limit(MAX_SHARDS + 1)).all()
    if not 0 < len(ids) <= MAX_SHARDS:
        return []
    settled = BatchRow.num_completed + BatchRow.num_failed + BatchRow.num_cancelled
    mean_output = cast(BatchRow.output_tokens, Double) / func.nullif(settled, 0)
    stored = func.coalesce(func.cardinality(PartialOutputRow.token_ids), 0)
    runs_once = or_(RequestRow.tool_loop.is_not(None), RequestRow.is_streamed)
    rows = session.execute(
        select(
            ShardRow.id,
            ShardRow.fence,
            func.count(),
            func.sum(RequestRow.num_prompt_tokens),
            ShardRow.running_tokens,
            func.sum(stored),
            func.sum(MAX_OUTPUT_TOKENS),
            cast(mean_output, Double),
        )
        .join(BatchRow, BatchRow.id == ShardRow.batch_id)
        .join(RequestRow, RequestRow.shard_id == ShardRow.id)
        .outerjoin(ResultRow, ResultRow.request_id == RequestRow.id)
        .outerjoin(PartialOutputRow, PartialOutputRow.request_id == RequestRow.id)
        .where(ShardRow.id.in_(ids), _may_have_backup(worker), _is_plain(), ResultRow.request_id.is_(None))
        .group_by(ShardRow.id, BatchRow.id)
        .having(~func.bool_or(runs_once))
    )
    return [
        Straggler(
            shard_id, fence, int(num_left), int(prompts), int(running), int(kept), int(limits), output_tokens
        )
        for shard_id, fence, num_left, prompts, running, kept, limits, output_tokens in rows
    ]


def claim(
    session: Session, shard_id: int, fence: int, *, worker: str, model: ServedModel | None = None
) -> Claim | None:
    """Claim the backup of a shard whose holder has this fence; return None if it may have none any more."""
    wanted = (ShardRow.id == shard_id, ShardRow.fence == fence, _may_have_backup(worker))
    batch, tenant = locks.look_from_shard(session, locks.from_shard(*wanted), {})
    if batch is None or batch.paused_at is not None or batches.is_stopping(session, batch):
        return None
    taken = (
        update(ShardRow)
        .where(*wanted, may_run(None if model is None else model.fingerprint))
        .values(backed_up_fence=ShardRow.fence)
        .returning(ShardRow.attempts, ShardRow.priority)
    )
    shard = session.execute(taken.execution_options(synchronize_session=False)).one_or_none()
    if shard is None:
        return None
    left = requests.remaining(session, shard_id, batch.params)
    named = {"fence": fence, "worker": worker, "requests": len(left)}
    journal.of_shards(session, "shard backed up", batch, shard_id, **named)
    return Claim(
        shard_id,
        batch.id,
        fence,
        shard.attempts,
        left,
        tenant_id=batch.tenant_id,
        weight=1 if tenant is None else tenant.weight,
        priority=shard.priority,
        cache=batch.cache,
        cache_similarity=batch.cache_similarity,
        may_use_semantic_cache=tenant is not None and tenant.may_use_semantic_cache,
        model_id=None if model is None else model.id,
        is_backup=True,
    )


def unwanted(session: Session, held: Claim) -> list[int]:
    """Return the requests of a held shard that its run, or its backup, need not run any more.

    They were cancelled, or the other run of the shard has brought their Results.
    """
    is_shared = (ShardRow.id == held.shard_id, ShardRow.backed_up_fence == held.fence)
    ended = (
        select(ResultRow.request_id)
        .join(RequestRow, RequestRow.id == ResultRow.request_id)
        .join(ShardRow, ShardRow.id == RequestRow.shard_id)
        .where(*is_shared)
    )
    return [*requests.cancelled_in(session, held.shard_id), *session.scalars(ended)]


def _may_have_backup(worker: str) -> ColumnElement[bool]:
    """Return the SQL condition of shards in progress that another worker holds and nobody backs up."""
    return and_(
        ShardRow.state == ShardState.RUNNING,
        ShardRow.lane == Lane.BATCH,
        ShardRow.worker != worker,
        # What several workers have had may be what they died of.
        ShardRow.attempts == 1,
        ~ShardRow.is_suspect,
        ShardRow.backed_up_fence.is_distinct_from(ShardRow.fence),
    )


def _is_plain() -> ColumnElement[bool]:
    """Return the SQL condition of batches that run, have no limit of tokens, and are read to their end."""
    return and_(
        BatchRow.status == BatchStatus.PROCESSING,
        BatchRow.paused_at.is_(None),
        BatchRow.max_total_tokens.is_(None),
        BatchRow.num_unread == 0,
    )
