"""Reads experiments, promotes the other model, or rolls it back. Each function is one transaction."""

from collections.abc import Collection

from sqlalchemy.orm import Session

from api.batches.experiments import check_experiment, start_experiment
from api.batches.reassigning import reassign_in
from api.dependencies import Services
from api.errors import ConflictError, InvalidInputError, NotFoundError
from api.experiments.schemas import (
    ExperimentAnswer,
    ExperimentMeans,
    ExperimentPage,
    ExperimentSide,
    ExperimentSubmission,
)
from api.figures import to_cost
from api.inputs.cursors import cut
from worker.contract.states import ExperimentMode, ExperimentStatus
from worker.store.experiments import experiment_views, experiments
from worker.store.experiments.experiment_views import ExperimentView
from worker.store.experiments.judging import Means, Report, Work
from worker.store.shards import reassigning
from worker.store.tenants import audit


def create(services: Services, submission: ExperimentSubmission, *, actor: str) -> str:
    """Start an experiment on a batch that runs already; return its id.

    Raises:
        NotFoundError: no such batch.
        ConflictError: the batch has ended, is still read from its file, or has an experiment.
        InvalidInputError: the other model is not served, or cannot run these requests.

    """
    batch_id = submission.batch_id
    experiment_id = experiments.id_of(batch_id)
    if submission.mode is ExperimentMode.AB:
        raise InvalidInputError(
            "mode: ab must be asked for with a new batch, as its requests are not shared out again",
            param="mode",
            code="invalid_value",
        )
    with services.store.transaction() as session:
        bound = reassigning.lock(session, batch_id)
        if bound is None:
            raise NotFoundError(f"There is no batch {batch_id}.", param="batch_id")
        if bound.is_over:
            raise ConflictError(f"{batch_id} has ended, or is about to.")
        if bound.is_unread:
            raise ConflictError(f"{batch_id} is still read from its file. Try again when it has been read.")
        if bound.is_mixed:
            raise ConflictError(f"{batch_id} names several models; an experiment is on a batch of one.")
        if experiment_views.get(session, experiment_id) is not None:
            raise ConflictError(f"{batch_id} has an experiment: {experiment_id}.")
        longest = reassigning.longest(session, batch_id)
        (tokenizer,) = bound.tokenizers
        new = check_experiment(session, services, submission, tokenizer, longest)
        start_experiment(session, batch_id, new, shard_size=services.settings.shard_sizes[0])
        details = {"batch": batch_id, "model": new.model.label}
        audit.record(
            session,
            actor,
            "experiment.start",
            experiments.id_of(batch_id),
            details,
            tenant_id=bound.tenant_id,
        )
    return experiments.id_of(batch_id)


def answer(services: Services, experiment_id: str) -> ExperimentAnswer:
    """Return an experiment with what it has shown so far.

    Raises:
        NotFoundError: no such experiment.

    """
    with services.store.transaction() as session:
        return to_answer(_find(session, experiment_id), services.settings.currency)


def page(services: Services, *, after: str | None, limit: int) -> ExperimentPage:
    """Return a page of experiments, newest first, after experiment `after`; raises UnknownCursorError."""
    with services.store.transaction() as session:
        found, has_more = cut(experiment_views.page(session, after=after, limit=limit + 1), limit)
    data = [to_answer(view, services.settings.currency) for view in found]
    return ExperimentPage(data=data, last_id=data[-1].experiment_id if data else None, has_more=has_more)


def promote(services: Services, experiment_id: str, *, actor: str) -> None:
    """Have the other model run the rest of the batch, and end the experiment.

    Raises:
        NotFoundError: no such experiment, or the other model is not served any more.
        ConflictError: the batch has ended, or the experiment was promoted or rolled back.

    """
    with services.store.transaction() as session:
        view = _find(session, experiment_id)
        # Before the experiment's lock, as a deletion of the batch takes the two in this order.
        other = f"{view.model_name}@{view.model_fingerprint}"
        reassign_in(session, services, view.batch_id, other, actor=actor)
        only = {ExperimentStatus.RUNNING, ExperimentStatus.ENDED}
        _end(session, view, ExperimentStatus.PROMOTED, only=only, actor=actor)


def roll_back(services: Services, experiment_id: str, *, actor: str) -> None:
    """End an experiment; give what is left of a promoted one back to the batch's first model.

    Raises:
        NotFoundError: no such experiment, or that model is not served any more.
        ConflictError: the experiment has ended, or it was promoted and its batch has ended.

    """
    with services.store.transaction() as session:
        view = _find(session, experiment_id)
        if view.status is ExperimentStatus.PROMOTED:
            first = f"{view.base_name}@{view.base_fingerprint}"
            reassign_in(session, services, view.batch_id, first, actor=actor)
        only = {ExperimentStatus.RUNNING, ExperimentStatus.PROMOTED} & {view.status}
        _end(session, view, ExperimentStatus.ROLLED_BACK, only=only, actor=actor)


def _find(session: Session, experiment_id: str) -> ExperimentView:
    view = experiment_views.get(session, experiment_id)
    if view is None:
        raise NotFoundError(f"There is no experiment {experiment_id}.", param="experiment_id")
    return view


def _end(
    session: Session,
    view: ExperimentView,
    status: ExperimentStatus,
    *,
    only: Collection[ExperimentStatus],
    actor: str,
) -> None:
    if not experiments.end(session, view.id, status, only=only):
        raise ConflictError(f"{view.id} has ended: {view.status}.")
    act = "experiment.promote" if status is ExperimentStatus.PROMOTED else "experiment.roll_back"
    details = {"batch": view.batch_id, "verdict": view.verdict.value}
    audit.record(session, actor, act, view.id, details, tenant_id=view.tenant_id)


def to_answer(view: ExperimentView, currency: str) -> ExperimentAnswer:
    """Return an experiment as a client reads it."""
    report, found = view.report, view.report.comparison
    return ExperimentAnswer(
        experiment_id=view.id,
        batch_id=view.batch_id,
        mode=view.mode,
        status=view.status,
        verdict=view.verdict,
        more_requests=found.more_lines,
        requests=view.num_requests,
        expected=view.num_expected,
        planned=view.num_planned,
        compared=found.num_lines,
        judged=found.num_scored,
        agreement=found.agreement if view.mode is ExperimentMode.SHADOW else None,
        difference=found.difference,
        interval=found.difference_interval,
        failed=_to_means(report.failed),
        valid=_to_means(report.valid),
        output_length=_to_means(report.length),
        speedup=_speedup(report),
        cost_change=_cost_change(report),
        a=_to_side(view.base_name, view.base_fingerprint, found.quality_a, report.work_a, currency),
        b=_to_side(view.model_name, view.model_fingerprint, found.quality_b, report.work_b, currency),
        share=view.share,
        allowed_loss=found.allowed_loss,
        resolution=found.resolution,
        created_at=view.created_at,
        ended_at=view.ended_at,
    )


def _to_side(
    name: str | None, fingerprint: str | None, quality: float | None, work: Work, currency: str
) -> ExperimentSide:
    return ExperimentSide(
        model=name,
        revision=fingerprint,
        quality=quality,
        output_tokens=work.output_tokens,
        device_seconds=work.device_seconds,
        cost=to_cost(work.cost_billionths, currency),
        tokens_per_device_second=work.speed,
    )


def _to_means(means: Means) -> ExperimentMeans:
    return ExperimentMeans(a=means.a, b=means.b, interval=means.interval)


def _speedup(report: Report) -> float | None:
    a, b = report.work_a.speed, report.work_b.speed
    return b / a if a and b is not None else None


def _cost_change(report: Report) -> float | None:
    a, b = report.work_a, report.work_b
    if a.cost_billionths:
        return b.cost_billionths / a.cost_billionths - 1
    return b.device_seconds / a.device_seconds - 1 if a.device_seconds else None
