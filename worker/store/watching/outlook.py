"""Read the inputs of forecasts: recent output lengths, outcomes of earlier forecasts, and waiting work.

`model` selects the batches for that model and those that any worker may run; `model=None`: all batches.
"""

from dataclasses import dataclass
from datetime import datetime
from functools import cache

from sqlalchemy import (
    ColumnElement,
    Float,
    Integer,
    Select,
    bindparam,
    cast,
    func,
    literal_column,
    or_,
    select,
    true,
)
from sqlalchemy.orm import Session

from worker.contract.states import LIVE_STATUSES, BatchStatus, ShardState
from worker.store.batches.batch_views import BatchView, ViewQuery, to_views, views
from worker.store.requests import batch_models
from worker.store.rows.access import TenantRow
from worker.store.rows.batches import BatchRow
from worker.store.rows.requests import RequestRow, ResultRow
from worker.store.rows.shards import ShardRow
from worker.values.outcomes import FinishReason, Outcome
from worker.values.requests import RequestKind

LEARNED_FROM_BATCHES = 20
RESULTS_A_BATCH = 64
LEARNED_FROM_OUTCOMES = 100

_WEIGHTS = select(TenantRow.id, TenantRow.weight).where(TenantRow.weight != 1)


@dataclass(frozen=True, slots=True)
class SeenOutput:
    """Length of an output and its limit, in tokens. Cut: its limit ended it."""

    num_tokens: int
    limit: int
    is_cut: bool


@dataclass(frozen=True, slots=True)
class ForecastOutcome:
    """Forecast time of a batch, from the costs of Steps alone, and the time that it took."""

    forecast_seconds: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Backlog:
    """Upper bound of the work that is left in live batches."""

    num_batches: int
    num_requests: int
    prompt_tokens: int
    max_output_tokens: int


def last_end(session: Session, *, model: str | None = None) -> datetime | None:
    """Return when a batch last ended: until the next one ends, what is learned here stays the same."""
    return session.scalar(_last_end(model))


# The queries of each poll are built once for a model: to build one takes Python longer than to run it.
@cache
def _last_end(model: str | None) -> Select[datetime | None]:
    has_ended = (BatchRow.finished_at.is_not(None), BatchRow.results_dropped_at.is_(None))
    return select(func.max(BatchRow.finished_at)).where(*has_ended, _is_of(model))


def recent_outputs(session: Session, *, model: str | None = None) -> list[list[SeenOutput]]:
    """Return outputs of each of the last batches, sampled evenly over the batch.

    Leaves out requests that ignore the end token or ask for several choices: they show no natural length.
    """
    by_batch: dict[str, list[SeenOutput]] = {}
    for batch_id, num_tokens, limit, is_cut in session.execute(_recent_outputs(model)):
        by_batch.setdefault(batch_id, []).append(SeenOutput(num_tokens, limit, is_cut))
    return list(by_batch.values())


@cache
def _recent_outputs(model: str | None) -> Select[str, int, int, bool]:
    recent = (
        select(BatchRow.id, BatchRow.num_completed, BatchRow.params, BatchRow.is_mixed)
        .where(
            BatchRow.finished_at.is_not(None),
            BatchRow.results_dropped_at.is_(None),
            BatchRow.num_completed > 0,
            _is_of(model),
        )
        .order_by(BatchRow.finished_at.desc())
        .limit(literal_column(str(LEARNED_FROM_BATCHES)))
        .subquery()
    )
    # Results are in order of completion, short ones first: take one in every `stride`, not the first ones.
    stride = func.greatest(1, recent.c.num_completed // RESULTS_A_BATCH)
    # Constants, not parameters, so that Postgres knows how few these are and does not read all results.
    first, last = (literal_column(str(number), Integer) for number in (0, 2 * RESULTS_A_BATCH))
    every = func.generate_series(first, last).table_valued("number").render_derived(name="every")
    sequence = 1 + every.c.number * stride
    params = func.coalesce(RequestRow.params, recent.c.params)
    return (
        select(
            recent.c.id,
            ResultRow.num_output_tokens,
            RequestRow.max_tokens,
            ResultRow.finish_reason == FinishReason.LENGTH,
        )
        .select_from(recent)
        .join(every, sequence <= recent.c.num_completed)
        .join(ResultRow, (ResultRow.batch_id == recent.c.id) & (ResultRow.sequence == sequence))
        .join(RequestRow, RequestRow.id == ResultRow.request_id)
        .join(ShardRow, ShardRow.id == RequestRow.shard_id)
        .where(
            true() if model is None else or_(~recent.c.is_mixed, ShardRow.model_fingerprint == model),
            ResultRow.outcome == Outcome.COMPLETED,
            RequestRow.kind == RequestKind.GENERATION,
            RequestRow.inputs.is_(None),
            *(params[name].is_(None) for name in ("ignore_eos", "n", "best_of")),
        )
    )


def forecast_outcomes(session: Session, *, model: str | None = None) -> list[ForecastOutcome]:
    """Return the outcomes of the last forecasts, newest first, without those of batches that had no work."""
    recent = (
        select(BatchRow.status, BatchRow.forecast_seconds, BatchRow.created_at, BatchRow.finished_at)
        .where(
            BatchRow.finished_at.is_not(None),
            BatchRow.results_dropped_at.is_(None),
            _is_of(model),
            ~BatchRow.is_mixed,  # the slowest of its models is not known afterwards
        )
        .order_by(BatchRow.finished_at.desc())
        .limit(LEARNED_FROM_OUTCOMES)
        .subquery()
    )
    seconds = func.extract("epoch", recent.c.finished_at - recent.c.created_at)
    rows = session.execute(
        select(recent.c.forecast_seconds, cast(seconds, Float(53)))
        .where(recent.c.status == BatchStatus.COMPLETED, recent.c.forecast_seconds > 0)
        .order_by(recent.c.finished_at.desc())
    )
    return [ForecastOutcome(forecast, taken) for forecast, taken in rows if forecast is not None]


def live_batches(session: Session, *, limit: int, model: str | None = None) -> list[BatchView]:
    """Return batches that have work left, highest priority first, then oldest first.

    Of a mixed batch, it returns the part that `model` has to run.
    """
    found = to_views(session, _live_batches(model), {"limit": limit})
    if model is None:
        return found
    own = (one for view in found for one in view.by_model())
    return [view for view in own if view.model_fingerprint in {None, model}]


@cache
def _live_batches(model: str | None) -> ViewQuery:
    order = (BatchRow.priority.desc(), BatchRow.created_at)
    return views().where(*_has_work(model)).order_by(*order).limit(bindparam("limit", type_=Integer))


def backlog(session: Session, *, model: str | None = None) -> Backlog:
    """Return the work that is left in all live batches."""
    its = batch_models.Picked(model)
    num_batches, num_requests, prompt_tokens, max_output_tokens = session.execute(
        select(
            func.count(),
            func.coalesce(func.sum(its.num_left), 0),
            func.coalesce(func.sum(its[BatchRow.num_prompt_tokens] - its[BatchRow.input_tokens]), 0),
            func.coalesce(func.sum(its[BatchRow.max_output_tokens] - its[BatchRow.settled_max_tokens]), 0),
        )
        .select_from(BatchRow)
        .outerjoin(its.part, its.joined)
        .where(*_has_work(model))
    ).one()
    running = session.scalar(
        select(func.coalesce(func.sum(ShardRow.running_tokens), 0)).where(
            ShardRow.state == ShardState.RUNNING,
            *([] if model is None else [ShardRow.model_fingerprint.in_({"", model})]),
        )
    )
    left = max_output_tokens - (running or 0)
    return Backlog(num_batches, int(num_requests), max(0, int(prompt_tokens)), max(0, int(left)))


def tenant_weights(session: Session) -> dict[str, float]:
    """Return the weights of tenants whose weight is not 1, by tenant id."""
    return {tenant_id: float(weight) for tenant_id, weight in session.execute(_WEIGHTS)}


def _has_work(model: str | None) -> tuple[ColumnElement[bool], ...]:
    its = true() if model is None else batch_models.is_of(model, has_work=True)
    return (BatchRow.status.in_(LIVE_STATUSES), BatchRow.paused_at.is_(None), its)


def _is_of(model: str | None) -> ColumnElement[bool]:
    if model is None:
        return true()
    return batch_models.is_of(model)
