"""Reads experiments with what they have shown so far."""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from worker.contract.access import NOBODY
from worker.contract.states import ExperimentMode, ExperimentStatus
from worker.quality.comparison import Verdict
from worker.store.database import cursors
from worker.store.experiments import judging
from worker.store.experiments.judging import Report
from worker.store.rows.experiments import ExperimentRow


@dataclass(frozen=True, slots=True)
class ExperimentView:
    """An experiment, as its customer reads it."""

    id: str
    tenant_id: str
    batch_id: str
    mode: ExperimentMode
    status: ExperimentStatus
    verdict: Verdict
    base_name: str | None  # the batch's model when it began
    base_fingerprint: str | None
    model_name: str  # the other one
    model_fingerprint: str
    share: float
    num_requests: int
    num_expected: int
    num_planned: int
    report: Report
    created_at: datetime
    ended_at: datetime | None


def get(session: Session, experiment_id: str) -> ExperimentView | None:
    """Return an experiment; None if there is none of this id."""
    row = session.get(ExperimentRow, experiment_id)
    return None if row is None else _to_view(session, row)


def page(session: Session, *, after: str | None, limit: int) -> list[ExperimentView]:
    """Return at most `limit` experiments that follow experiment `after`, the newest first.

    Raises:
        UnknownCursorError: there is no experiment `after`.

    """
    order = (ExperimentRow.created_at, ExperimentRow.id)
    query = select(ExperimentRow).where(ExperimentRow.tenant_id != NOBODY)  # of a deleted batch
    query = cursors.follow(session, query, order, after=after, limit=limit)
    return [_to_view(session, row) for row in session.scalars(query)]


def _to_view(session: Session, row: ExperimentRow) -> ExperimentView:
    return ExperimentView(
        id=row.id,
        tenant_id=row.tenant_id,
        batch_id=row.batch_id,
        mode=row.mode,
        status=row.status,
        verdict=row.verdict,
        base_name=row.base_name,
        base_fingerprint=row.base_fingerprint,
        model_name=row.model_name,
        model_fingerprint=row.model_fingerprint,
        share=row.share,
        num_requests=row.num_requests,
        num_expected=row.num_expected,
        num_planned=row.num_planned,
        report=judging.report(session, row),
        created_at=row.created_at,
        ended_at=row.ended_at,
    )
