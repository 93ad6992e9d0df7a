"""Refuses a batch that cannot meet its deadline, instead of letting it expire."""

from datetime import UTC, datetime, timedelta
from math import ceil

from sqlalchemy.orm import Session

from api.errors import InvalidInputError
from worker.forecasts.forecaster import Forecast
from worker.store.batches.batches import NewBatch
from worker.store.watching import queueing


def check_deadline(session: Session, batch: NewBatch, forecast: Forecast | None) -> None:
    """Refuse a batch whose deadline is earlier than the low end of its forecast.

    Without a forecast, because nothing was measured yet, every deadline in the future passes; of a batch that
    starts later, every deadline after its start.

    Raises:
        InvalidInputError: the deadline is past, or cannot be met.

    """
    if batch.deadline is None and batch.completion_window is None:
        return
    param = "deadline" if batch.deadline is not None else "completion_window"
    now = queueing.read_clock(session)
    begin = batch.start_after or now
    expires_at = batch.deadline or begin + (batch.completion_window or timedelta())
    left = (expires_at - now).total_seconds()
    if left > 0 and expires_at <= begin:
        raise InvalidInputError(f"{param}: must be later than start_after", param=param, code="deadline_past")
    if left <= 0:
        raise InvalidInputError(
            f"{param}: {_text(expires_at)} is in the past", param=param, code="deadline_past"
        )
    if batch.start_after is None and forecast is not None and forecast.seconds.low > left:
        raise InvalidInputError(
            f"{param}: the batch cannot end in time. It takes about {ceil(forecast.seconds.expected)} s"
            f" ({round(forecast.waiting_seconds)} s of that behind other work) and at least"
            f" {ceil(forecast.seconds.low)} s, but only {int(left)} s are left.",
            param=param,
            code="deadline_unreachable",
        )


def _text(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat()
