"""Starts experiments, and keeps each in step with its batch until nothing is left to do.

The shadow of a batch is a batch of its own: docs/decisions/0024.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Integer, Select, cast, func, insert, literal, null, select
from sqlalchemy.orm import Session

from worker.contract.access import NOBODY, SHADOW
from worker.contract.models import Model
from worker.contract.states import BatchStatus, ExperimentMode, ExperimentStatus, Lane
from worker.quality.comparison import Verdict
from worker.quality.sequential import sample_size
from worker.store.batches import batches, copying, journal
from worker.store.database.journal import record
from worker.store.database.notify import wake_dispatcher
from worker.store.experiments import judging, splitting
from worker.store.experiments.judging import Report
from worker.store.requests import models
from worker.store.rows.batches import BatchRow
from worker.store.rows.experiments import ExperimentLineRow, ExperimentRow
from worker.store.rows.requests import RequestRow
from worker.store.shards import control, reassigning
from worker.values.caching import CacheMode
from worker.values.requests import RequestKind

# Share of requests that only one side gets right, for the number said beforehand: nobody knows it yet.
DISCORDANCE = 0.2
# What the customer asked for that the shadow must not do again, or hold its results to.
NOT_OF_REQUESTS = ("cache", "cache_ttl_seconds", "timeout_seconds")
NOT_OF_BATCH = ("name", "callback_url", "endpoint", "input_file_id", "max_failed", "max_total_tokens")

OPEN = select(ExperimentRow.id).where(ExperimentRow.closed_at.is_(None))


class NothingToCompareError(Exception):
    """No request of the batch can run under another model too."""


@dataclass(frozen=True, slots=True)
class NewExperiment:
    """An experiment to start with a batch."""

    model: Model  # the other one, with the batch's tokenizer
    share: float  # of the requests, above 0
    allowed_loss: float
    resolution: float
    mode: ExperimentMode = ExperimentMode.SHADOW


def id_of(batch_id: str) -> str:
    """Return the id of the experiment on a batch, whether or not there is one."""
    return f"experiment_{batch_id.removeprefix('batch_')}"


def batch_of(experiment_id: str) -> str:
    """Return the id of the batch that an experiment of this id is on."""
    return f"batch_{experiment_id.removeprefix('experiment_')}"


def start(session: Session, batch_id: str, new: NewExperiment, *, shard_size: int) -> None:
    """Start an experiment on a batch that this transaction has just submitted, or has locked.

    Raises:
        NothingToCompareError: none of its requests can take part.

    """
    row = announce(session, batch_id, new)
    _take(session, row, session.get_one(BatchRow, batch_id), first_position=0, shard_size=shard_size)
    if not row.num_requests:
        raise NothingToCompareError


def announce(session: Session, batch_id: str, new: NewExperiment) -> ExperimentRow:
    """Store an experiment on a batch; for one whose lines are read later, `take_lines` starts it."""
    batch = session.get_one(BatchRow, batch_id)
    row = ExperimentRow(
        id=id_of(batch_id),
        tenant_id=batch.tenant_id,
        batch_id=batch_id,
        mode=new.mode,
        base_name=batch.model_name,
        base_fingerprint=batch.model_fingerprint,
        model_name=new.model.name,
        model_fingerprint=new.model.fingerprint,
        share=new.share,
        allowed_loss=new.allowed_loss,
        resolution=new.resolution,
        num_planned=sample_size(new.resolution, DISCORDANCE, allowed_loss=new.allowed_loss),
        num_requests=0,
        num_expected=0,
    )
    session.add(row)
    session.flush()
    return row


def take_lines(session: Session, batch_id: str, num_lines: int, *, shard_size: int) -> None:
    """Have the last lines of a batch's file take part, which this transaction has made requests of.

    In mode ab the other model gets its share of them before anybody can claim one. A shadow begins once all
    lines are there. Does nothing for a batch without a running experiment. The caller has the batch locked.
    """
    of_batch = (ExperimentRow.batch_id == batch_id, ExperimentRow.status == ExperimentStatus.RUNNING)
    row = session.scalar(select(ExperimentRow).where(*of_batch).with_for_update())
    batch = session.get_one(BatchRow, batch_id)
    if row is None or batch.model_fingerprint != row.base_fingerprint:
        return
    if batches.is_stopping(session, batch) and batch.status is not BatchStatus.COMPLETED:
        return
    if row.mode is ExperimentMode.AB:
        first = batch.num_requests - batch.num_unread - num_lines
        _take(session, row, batch, first_position=first, shard_size=shard_size)
    elif not batch.num_unread:
        _take(session, row, batch, first_position=0, shard_size=shard_size)


def _take(
    session: Session, row: ExperimentRow, batch: BatchRow, *, first_position: int, shard_size: int
) -> None:
    """Choose requests from a position on and have the other model run them."""
    is_split = row.mode is ExperimentMode.AB
    can_take_part = [
        RequestRow.batch_id == batch.id,
        RequestRow.position >= first_position,
        RequestRow.kind == RequestKind.GENERATION,
        RequestRow.tool_loop.is_(None),  # its calls would be made twice
        ~RequestRow.is_wrong_line,
    ]
    if is_split:
        can_take_part.append(~splitting.has_copies())
    num_possible = session.scalar(select(func.count()).where(*can_take_part)) or 0
    num_chosen = max(not row.num_requests, round(row.share * num_possible))
    num_chosen = min(num_chosen, num_possible // 2 if is_split else num_possible)
    if not num_chosen:
        return
    by_chance = func.md5(func.concat(row.id, " ", RequestRow.position))
    chosen = select(RequestRow.id).where(*can_take_part).order_by(by_chance).limit(num_chosen)
    model = Model(row.model_name, row.model_fingerprint, batch.model_tokenizer or "")
    row.num_requests += num_chosen
    if is_split:
        place = func.row_number().over(order_by=by_chance).label("place")
        ordered = select(place, RequestRow.position, RequestRow.expected).where(*can_take_part)
        row.num_expected += splitting.pair(session, row.id, ordered, num_chosen)
        splitting.move(session, batch, chosen, model, shard_size=shard_size)
    else:
        row.shadow_id = _add_shadow(session, batch, model, chosen, shard_size=shard_size).id
        row.num_expected = _add_lines(session, row.id, chosen)


def _add_lines(session: Session, experiment_id: str, chosen: Select[int]) -> int:
    """Store the chosen requests of a batch and their copies as pairs; return how many have an expectation."""
    place = func.row_number().over(order_by=RequestRow.position) - 1
    lines = select(literal(experiment_id), RequestRow.position, cast(place, Integer))
    session.execute(
        insert(ExperimentLineRow).from_select(
            ["experiment_id", "position", "shadow_position"], lines.where(RequestRow.id.in_(chosen))
        )
    )
    expected = select(func.count()).where(RequestRow.id.in_(chosen), RequestRow.expected.is_not(None))
    return session.scalar(expected) or 0


def _add_shadow(
    session: Session, batch: BatchRow, model: Model, chosen: Select[int], *, shard_size: int
) -> BatchRow:
    """Copy the chosen requests of a batch into a batch of another model that no customer sees."""
    own: dict[str, Any] = {
        "id": batches.new_id(),
        "tenant_id": SHADOW + batch.tenant_id,
        "metadata_": {},
        "cache": CacheMode.OFF,
        "cache_similarity": null(),
        "cache_ttl_seconds": null(),
        "expires_at": batch.expires_at,
        "paused_at": batch.paused_at,
        **dict.fromkeys(NOT_OF_BATCH, None),
        **models.columns_of(model),
    }
    shadow = copying.copy_batch(session, batch, own | copying.sums_of(session, chosen))
    first_positions = copying.add_shards(session, shadow, chosen, shard_size=shard_size)
    copying.copy_requests(
        session, chosen, shadow, first_positions, shard_size=shard_size, without=NOT_OF_REQUESTS
    )
    wake_dispatcher(session)
    journal.accepted(session, shadow.id, Lane.BATCH, shadow.num_requests, shadow.priority, model=model)
    return shadow


def open_ids(session: Session, *, limit: int) -> list[str]:
    """Return at most `limit` experiments that `advance` has something to do for, the oldest first."""
    return list(session.scalars(OPEN.order_by(ExperimentRow.created_at).limit(limit)))


def advance(session: Session, experiment_id: str) -> None:
    """Judge what has come in, end the experiment if it is decided, and keep its shadow in step.

    Does nothing if another transaction has the experiment locked.
    """
    row = session.scalar(
        select(ExperimentRow)
        .where(ExperimentRow.id == experiment_id, ExperimentRow.closed_at.is_(None))
        .with_for_update(skip_locked=True)
    )
    if row is None:
        return
    batch = session.get(BatchRow, row.batch_id)
    shadow = None if row.shadow_id is None else session.get(BatchRow, row.shadow_id)
    if row.tenant_id == NOBODY or batch is None:
        _drop(session, row, shadow)
        return
    is_gone = row.shadow_id is not None and shadow is None
    if row.status is ExperimentStatus.RUNNING and not is_gone:
        _look(session, row, batch, shadow)
    if row.status is not ExperimentStatus.RUNNING or is_gone:
        _close(session, row, batch, shadow)


def _look(session: Session, row: ExperimentRow, batch: BatchRow, shadow: BatchRow | None) -> None:
    """Judge new results; decide, or carry over what has become of the batch."""
    if batch.model_fingerprint != row.base_fingerprint:  # it was reassigned
        _end(session, row, ExperimentStatus.ENDED)
        return
    num_seen = batch.num_settled + (0 if shadow is None else shadow.num_settled)
    is_all = True
    if num_seen != row.num_seen:
        is_all = judging.judge(session, row, batch) < judging.AT_ONCE
        row.verdict = _verdict(judging.report(session, row), row.allowed_loss)
        if is_all:
            row.num_seen = num_seen
    if row.verdict is not Verdict.UNDECIDED:
        _end(session, row, _status_of(row.verdict))
    elif is_all and _is_over(batch, shadow):
        _end(session, row, ExperimentStatus.ENDED)
    elif shadow is not None and not shadow.status.is_terminal:
        _keep_paused(session, batch, shadow)


def _verdict(report: Report, allowed_loss: float) -> Verdict:
    """Return the verdict on the other model; one with more failed requests than allowed is worse."""
    failed = report.failed.interval
    if failed is not None and failed[0] > allowed_loss:
        return Verdict.WORSE
    return report.comparison.verdict


def _keep_paused(session: Session, batch: BatchRow, shadow: BatchRow) -> None:
    """Pause or resume a shadow as its batch is."""
    if (batch.paused_at is None) != (shadow.paused_at is None):
        carry_over: Callable[..., object] = control.resume if batch.paused_at is None else control.pause
        carry_over(session, shadow.id)


def _is_over(batch: BatchRow, shadow: BatchRow | None) -> bool:
    """Return whether no further request will have a result on both sides, or its batch was stopped."""
    if shadow is None:
        return batch.status.is_terminal
    if batch.status.is_terminal and batch.status is not BatchStatus.COMPLETED:
        return True
    return shadow.status.is_terminal and (
        batch.status.is_terminal or shadow.status is not BatchStatus.COMPLETED
    )


def _status_of(verdict: Verdict) -> ExperimentStatus:
    return ExperimentStatus.ROLLED_BACK if verdict is Verdict.WORSE else ExperimentStatus.ENDED


def _end(session: Session, row: ExperimentRow, status: ExperimentStatus) -> None:
    row.status, row.ended_at = status, func.now()
    session.flush()
    ended: dict[str, Any] = {"experiment": row.id, "status": status.value, "verdict": row.verdict.value}
    record(session, "experiment ended", batch=row.batch_id, shard=None, **ended)


def end(
    session: Session, experiment_id: str, status: ExperimentStatus, *, only: Collection[ExperimentStatus]
) -> bool:
    """Give an experiment a terminal status, as its customer asks; return False if its own is not in `only`.

    The dispatcher's next sweep cancels the shadow, which belongs to another tenant.
    """
    row = session.scalar(select(ExperimentRow).where(ExperimentRow.id == experiment_id).with_for_update())
    if row is None or row.status not in only:
        return False
    _end(session, row, status)
    return True


def _close(session: Session, row: ExperimentRow, batch: BatchRow, shadow: BatchRow | None) -> None:
    """Take from the other model what it is not to run any more; close the experiment once that is done."""
    if row.mode is ExperimentMode.AB and row.status is ExperimentStatus.ROLLED_BACK:
        # Not waited for: a promotion locks the batch first, and then the experiment.
        if batches.lock(session, batch.id, skip_locked=True) is None:
            return
        reassigning.give_back(session, batch)
    if shadow is not None and not shadow.status.is_terminal:
        batches.cancel(session, shadow.id)
    if shadow is None or shadow.status.is_terminal:
        row.closed_at = func.now()


def _drop(session: Session, row: ExperimentRow, shadow: BatchRow | None) -> None:
    """Delete the experiment on a deleted batch, and its shadow."""
    if shadow is not None and not shadow.status.is_terminal:
        batches.cancel(session, shadow.id)
    if shadow is None or control.remove(session, shadow.id) is control.Done.YES:
        session.delete(row)
