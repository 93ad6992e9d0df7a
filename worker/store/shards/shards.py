"""Claims shards under a fenced lease, saves their progress, and finishes or releases them."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import Enum, auto
from functools import cache
from typing import Any

from sqlalchemy import (
    ColumnElement,
    DateTime,
    Interval,
    Select,
    Update,
    and_,
    bindparam,
    case,
    false,
    func,
    select,
    true,
    tuple_,
    update,
)
from sqlalchemy.orm import Session

from worker.contract.access import DEFAULT_TENANT
from worker.contract.models import ServedModel
from worker.contract.states import AttemptCause, BatchStatus, Lane, ShardState
from worker.store.batches import batches, journal, locks, stop_rules
from worker.store.cache import response_cache
from worker.store.database.notify import wake_dispatcher
from worker.store.requests import attempts, copies, missing, models, partial_outputs, requests, tally
from worker.store.requests.recording import record
from worker.store.requests.requests import ShardRequest
from worker.store.requests.tool_turns import keep as keep_turns
from worker.store.rows.access import TenantRow
from worker.store.rows.batches import BatchRow
from worker.store.rows.requests import RequestRow
from worker.store.rows.shards import ShardRow
from worker.store.shards import budget, rates
from worker.values.caching import CacheMode
from worker.values.outcomes import Outcome
from worker.values.results import NewResult, PartialOutput, RequestError, ToolTurn

# Columns of a shard that no worker holds and no ticket names.
NOBODYS: dict[str, Any] = {"worker": None, "lease_expires_at": None, "ticketed_at": None}

REQUEST_CANCELLED = RequestError("request_cancelled", "this request was cancelled")

_IS_IN_TIME = func.coalesce(func.now() < bindparam("deadline", type_=DateTime(timezone=True)), true())
_CLAIM = (
    update(ShardRow)
    .values(
        state=ShardState.RUNNING,
        fence=ShardRow.fence + 1,
        attempts=ShardRow.attempts + 1,
        worker=bindparam("claimed_by"),
        claimed_at=func.now(),
        lease_expires_at=func.now() + bindparam("lease", type_=Interval),
        running_tokens=0,
        ticketed_at=None,
    )
    .returning(ShardRow.fence, ShardRow.attempts, ShardRow.priority, ShardRow.lease_expires_at)
    .execution_options(synchronize_session=False)
)


@dataclass(frozen=True, slots=True)
class Claim:
    """A held shard; its fence proves the hold until the shard is claimed again or reassigned."""

    shard_id: int
    batch_id: str
    fence: int
    attempt: int
    requests: Sequence[ShardRequest]  # the first of each group of identical ones
    tenant_id: str = DEFAULT_TENANT
    weight: int = 1  # the tenant's, in fair shares
    priority: int = 0  # beside the tenant's other work
    cache: CacheMode = CacheMode.OFF  # for requests that have no mode of their own
    cache_similarity: float | None = None
    leased_until: datetime | None = None  # the end of the lease, as claimed
    may_use_semantic_cache: bool = False  # its tenant, when the claim was made
    model_id: int | None = None  # in `served_models`, of the model that runs it
    lane: Lane = Lane.BATCH
    is_backup: bool = False  # another worker holds the shard: worker/store/shards/backups.py

    @property
    def key(self) -> tuple[int, int]:
        """Shard id and fence."""
        return self.shard_id, self.fence


@dataclass(frozen=True, slots=True)
class Progress:
    """Results and progress that the holder of a shard saves."""

    held: Claim
    results: Sequence[NewResult]
    running_tokens: int  # generated so far by unfinished requests
    is_last: bool = False  # with these, every request of the shard has its result
    partial_outputs: Mapping[int, PartialOutput] = field(default_factory=dict)  # of long ones, by request id
    tool_turns: Mapping[int, ToolTurn] = field(default_factory=dict)  # new or changed, by request id


class AfterSave(Enum):
    """Instruction to the holder of a shard after a save."""

    CONTINUE = auto()  # the lease is renewed
    CANCEL_SOME = auto()  # go on without the requests that `backups.unwanted` returns
    PAUSE = auto()  # the batch was paused: stop, release
    STOP = auto()  # the batch was cancelled, stopped itself or expired: stop, save cut-off requests
    DONE = auto()  # the shard is finished: a backup of it, or the run that this one backs up, has the rest
    LOST = auto()  # the fence no longer holds, or the batch has ended: nothing was written


def claim(
    session: Session, shard_id: int, *, worker: str, lease: timedelta, model: ServedModel | None = None
) -> Claim | None:
    """Claim a ready shard of a live batch for a worker of this model; return None if that cannot be done."""
    query, taken = _to_claim(None if model is None else model.fingerprint)
    batch, tenant = locks.look_from_shard(session, query, {"of_shard": shard_id})
    batch = None if batch is None else locks.lock_to_claim(session, batch)
    if batch is None or batch.paused_at is not None or batches.has_stopped(batch):
        return None
    given = {"of_shard": shard_id, "claimed_by": worker, "lease": lease, "deadline": batch.expires_at}
    shard = session.execute(taken, given).one_or_none()
    if shard is None:
        return None
    _start(session, batch, at=shard.lease_expires_at - lease)
    unfinished = requests.remaining(session, shard_id, batch.params)
    remaining = budget.affordable(session, batch, shard_id, unfinished)
    of_claim = {"fence": shard.fence, "attempt": shard.attempts, "worker": worker}
    journal.of_shards(session, "shard claimed", batch, shard_id, requests=len(remaining), **of_claim)
    return Claim(
        shard_id,
        batch.id,
        shard.fence,
        shard.attempts,
        remaining,
        tenant_id=batch.tenant_id,
        weight=1 if tenant is None else tenant.weight,
        priority=shard.priority,
        cache=batch.cache,
        cache_similarity=batch.cache_similarity,
        leased_until=shard.lease_expires_at,
        may_use_semantic_cache=tenant is not None and tenant.may_use_semantic_cache,
        model_id=None if model is None else model.id,
        lane=batch.lane,
    )


@cache
def _to_claim(fingerprint: str | None) -> tuple[Select[BatchRow, TenantRow | None], Update]:
    """Return the query of a shard's batch and tenant, and the claim, for a worker of this model."""
    # Built once: to build them takes Python longer than to run them.
    wanted = (ShardRow.id == bindparam("of_shard"), models.may_run(fingerprint))
    return locks.from_shard(*wanted), _CLAIM.where(*wanted, ShardRow.state == ShardState.READY, _IS_IN_TIME)


def _start(session: Session, batch: BatchRow, *, at: datetime | None) -> None:
    """Start a locked batch that has not started; a claim that finds the lock taken leaves that to a save."""
    if batch.status is BatchStatus.PENDING and at is not None and tally.is_locked(batch):
        batch.status, batch.started_at = BatchStatus.PROCESSING, at
        session.flush()
        journal.started(session, batch, at=at)


def save(session: Session, progress: Sequence[Progress], *, lease: timedelta | None) -> list[AfterSave]:
    """Record results and progress of shards of one batch, and renew their leases unless `lease` is None.

    A shard that has its last result is finished, and the batch ends with its last shard. If another
    transaction has the batch locked, the results are stored and not yet counted: call `counting.follow` after
    the commit.
    """
    batch = locks.lock_to_save(session, progress[0].held.batch_id)
    locked = {} if batch is None else _lock_all_held(session, [one.held for one in progress])
    held = [one for one in progress if one.held.key in locked]
    done = _done_by_others(session, [one.held for one in progress if one.held.key not in locked])
    if batch is None or not held:
        return [AfterSave.DONE if one.held.key in done else AfterSave.LOST for one in progress]
    results = [result for one in held for result in _to_keep(one)]
    if batch.status is BatchStatus.PENDING:
        claimed_at = select(func.min(ShardRow.claimed_at)).where(_is_held([one.held for one in held]))
        _start(session, batch, at=session.scalar(claimed_at))
    tally.catch_up(session, batch)
    for one in held:
        _settle_cancelled_copies(session, batch, one.held)
    model_id = held[0].held.model_id  # all are held by one worker
    _record(session, batch, requests.without_result(session, results), model_id=model_id)
    last = {one.held.shard_id for one in held if one.is_last and not one.held.is_backup}
    shared = {shard_id for (shard_id, _), has_backup in locked.items() if has_backup} - last
    finished = last - _return_unfinished(session, last)
    finished |= shared - requests.shards_with_some_left(session, shared)
    if finished:
        _update(session, finished, {"state": ShardState.FINISHED, "running_tokens": 0} | NOBODYS)
        journal.of_shards(session, "shard finished", batch, *sorted(finished))
    _keep_progress(session, [one for one in held if one.held.shard_id not in last | finished], shared, lease)
    stop_rules.apply(session, batch)
    # What others have left uncounted since, `counting.follow` finds.
    is_over = batch.num_settled == batch.num_requests
    if is_over or ((last or finished) and batches.is_stopping(session, batch)):
        batches.settle(session, batch)
    rates.measure(session, batch)
    done |= {one.held.key for one in held if one.held.shard_id in finished - last}
    return [_verdict(session, batch, one.held, locked, done) for one in progress]


def _to_keep(one: Progress) -> Sequence[NewResult]:
    """Return the results that count: of a backup, only those that need nobody's decision."""
    if not one.held.is_backup:
        return one.results
    return [result for result in one.results if result.outcome is Outcome.COMPLETED]


def _keep_progress(
    session: Session, running: Sequence[Progress], shared: Collection[int], lease: timedelta | None
) -> None:
    """Store the progress of shards that run on, and renew their leases; `shared` ones have a backup."""
    own = [one for one in running if not one.held.is_backup]
    if not own:
        return
    for one in own:
        if one.held.shard_id not in shared:  # the other run may have their results
            partial_outputs.keep(session, one.partial_outputs)
        keep_turns(session, one.tool_turns)
    tokens = {one.held.shard_id: one.running_tokens for one in own}
    changes: dict[str, Any] = {"running_tokens": case(tokens, value=ShardRow.id)}
    if lease is not None:
        changes |= {"state": ShardState.RUNNING, "lease_expires_at": func.now() + lease}
        changes["ticketed_at"] = None
    _update(session, tokens.keys(), changes)


def _settle_cancelled_copies(session: Session, batch: BatchRow, held: Claim) -> None:
    """End cancelled requests of a held shard that its holder does not run, as it runs their originals."""
    if batch.has_cancelled_requests and not held.is_backup:
        run = {request.id for request in held.requests}
        unwanted = [one for one in requests.cancelled_in(session, held.shard_id) if one not in run]
        if unwanted:
            missing.settle(session, batch, Outcome.CANCELLED, REQUEST_CANCELLED, request_ids=unwanted)


def _return_unfinished(session: Session, shard_ids: Collection[int]) -> set[int]:
    """Make shards ready again that ran to their end but have requests without a result; return them.

    Such requests are copies of a request that was cancelled on its own, so they still have to run.
    """
    unfinished = requests.shards_with_some_left(session, shard_ids)
    if unfinished:
        changes = {"state": ShardState.READY, "running_tokens": 0, "attempts": ShardRow.attempts - 1}
        _update(session, unfinished, changes | NOBODYS)
        wake_dispatcher(session)
    return unfinished


def _verdict(
    session: Session,
    batch: BatchRow,
    held: Claim,
    locked: Mapping[tuple[int, int], bool],
    done: Collection[tuple[int, int]],
) -> AfterSave:
    if held.key in done:
        return AfterSave.DONE
    if held.key not in locked:
        return AfterSave.LOST
    if batches.is_stopping(session, batch):
        return AfterSave.STOP
    if batch.paused_at is not None:
        return AfterSave.PAUSE
    has_cancelled = batch.has_cancelled_requests and requests.cancelled_in(session, held.shard_id)
    return AfterSave.CANCEL_SOME if has_cancelled or locked[held.key] else AfterSave.CONTINUE


def release(session: Session, held: Claim, unfinished: Mapping[int, PartialOutput] | None = None) -> None:
    """Hand a held shard back, so that the next worker to claim it runs its unfinished requests.

    These continue from their partial outputs, where `unfinished` has one by request id.
    """
    batch = locks.lock_or_look(session, held.batch_id)
    if batch is None or not _lock_all_held(session, [held]):
        return
    partial_outputs.keep(session, unfinished or {})
    journal.of_shards(session, "shard handed back", batch, held.shard_id, fence=held.fence)
    if not batches.is_stopping(session, batch):
        cause = AttemptCause.HANDED_BACK if batch.paused_at is None else AttemptCause.PAUSED
        attempts.record(session, held.shard_id, cause)
    session.execute(
        update(ShardRow)
        .where(ShardRow.id == held.shard_id)
        .values(
            state=ShardState.READY,
            attempts=ShardRow.attempts - 1,  # a release is not a failure
            running_tokens=0,
            **NOBODYS,
        )
    )
    settle_cancelled_requests(session, batch, held.shard_id)
    batches.settle(session, batch)
    wake_dispatcher(session)


def settle_cancelled_requests(session: Session, batch: BatchRow, shard_id: int) -> None:
    """End the cancelled requests of a locked shard that no worker runs."""
    if not batch.has_cancelled_requests:
        return
    unwanted = requests.cancelled_in(session, shard_id)
    if unwanted:
        missing.settle(session, batch, Outcome.CANCELLED, REQUEST_CANCELLED, request_ids=unwanted)
        finish_if_done(session, shard_id)


def finish_if_done(session: Session, shard_id: int) -> None:
    """Finish a locked shard that no worker runs if each of its requests has its result."""
    if not requests.shards_with_some_left(session, [shard_id]):
        session.execute(
            update(ShardRow)
            .where(ShardRow.id == shard_id)
            .values(state=ShardState.FINISHED, running_tokens=0, **NOBODYS)
        )


def _update(session: Session, shard_ids: Collection[int] | Select[int], changes: dict[str, Any]) -> None:
    session.execute(
        update(ShardRow)
        .where(ShardRow.id.in_(shard_ids))
        .values(changes)
        .execution_options(synchronize_session=False)
    )


def _lock_all_held(session: Session, claims: Sequence[Claim]) -> dict[tuple[int, int], bool]:
    """Lock the shards that these claims still hold; return their keys, and whether each has a backup."""
    has_backup = func.coalesce(ShardRow.backed_up_fence == ShardRow.fence, false()).label("has_backup")
    held = select(ShardRow.id, ShardRow.fence, ShardRow.is_suspect, has_backup).where(_is_held(claims))
    rows = session.execute(held.order_by(ShardRow.id).with_for_update()).all()
    if any(row.is_suspect for row in rows):
        # Requests of a shard that was bisected since are in other shards now: lock those too.
        ids = [request.id for claim in claims for request in claim.requests]
        halves = select(RequestRow.shard_id).where(RequestRow.id.in_(ids))
        its = select(ShardRow.id).where(ShardRow.id.in_(halves)).order_by(ShardRow.id)
        session.execute(its.with_for_update())
    return {(row.id, row.fence): row.has_backup for row in rows}


def _done_by_others(session: Session, claims: Sequence[Claim]) -> set[tuple[int, int]]:
    """Return the keys of the claims, none of which holds, whose shards were finished with a backup."""
    if not claims:
        return set()
    its = tuple_(ShardRow.id, ShardRow.fence).in_([claim.key for claim in claims])
    is_done = (ShardRow.state == ShardState.FINISHED, ShardRow.backed_up_fence == ShardRow.fence)
    found = session.execute(select(ShardRow.id, ShardRow.fence).where(its, *is_done))
    done = {(row.id, row.fence) for row in found}
    lost = {claim.shard_id: claim.fence for claim in claims if claim.key not in done}
    journal.lost(session, claims[0].batch_id, lost)
    return done


def _is_held(claims: Sequence[Claim]) -> ColumnElement[bool]:
    # A shard whose lease expired keeps our fence until the next claim: until then our work is good.
    return and_(
        tuple_(ShardRow.id, ShardRow.fence).in_([claim.key for claim in claims]),
        ShardRow.state.in_([ShardState.RUNNING, ShardState.READY]),
    )


def _record(session: Session, batch: BatchRow, results: Sequence[NewResult], *, model_id: int | None) -> None:
    if not results:
        return
    # The worker that ran them does not know why the batch stops.
    results = [
        replace(result, error=batches.stop_reason(batch))
        if result.outcome is Outcome.CANCELLED and result.error is None
        else result
        for result in results
    ]
    record(session, batch.id, results, last_number=tally.last_number(batch), model_id=model_id)
    tally.add(session, batch)
    copies.record(session, batch, results)
    response_cache.keep(session, results, tenant_id=batch.tenant_id)
