"""Estimates a submission from measured Steps and past batches."""

from datetime import UTC, datetime, timedelta
from math import ceil

from api.batches.schemas import BatchSubmission
from api.batches.submission import to_batch
from api.dependencies import Services
from api.estimates.schemas import Estimate, Finish, Guess
from api.forecasts.forecaster import Forecast
from api.forecasts.ranges import Range
from api.forecasts.work import distinct, num_at_limit, of_requests, output_tokens
from worker.store.batches.batches import NewBatch


def estimate(services: Services, submission: BatchSubmission) -> Estimate:
    """Check a submission as `submit` does, and return its estimate.

    Raises:
        InvalidInputError: a field is wrong.

    """
    batch = to_batch(services, submission)
    model = None if batch.model is None else batch.model.fingerprint
    forecaster = services.read_forecaster(model)
    different = distinct(batch)
    cost = forecaster.device_seconds(of_requests(batch, different, forecaster.lengths))
    forecast = forecaster.of_new(batch)
    outputs = output_tokens(batch, batch.requests, forecaster.lengths)
    return Estimate(
        requests=len(batch.requests),
        duplicates=len(batch.requests) - len(different),
        input_tokens=sum(request.num_prompt_tokens for request in batch.requests),
        max_output_tokens=sum(request.max_output_tokens(batch.params) for request in batch.requests),
        expected_output_tokens=_guess(outputs, digits=0),
        expected_at_limit=ceil(num_at_limit(batch, batch.requests, forecaster.lengths) - 0.5),
        learned_from_batches=forecaster.lengths.num_batches,
        requests_ahead=forecaster.num_requests_ahead(priority=batch.priority),
        workers=forecaster.num_workers,
        cost_units=None if cost is None else _guess(cost),
        finish=None if forecast is None else _finish(batch, forecast),
    )


def _finish(batch: NewBatch, forecast: Forecast) -> Finish:
    seconds, window = forecast.seconds, batch.completion_window
    now = datetime.now(UTC)
    left = None if batch.deadline is None else (batch.deadline - now).total_seconds()
    if window is not None:
        left = window.total_seconds()
    return Finish(
        seconds=_guess(seconds),
        waiting_seconds=round(forecast.waiting_seconds, 3),
        at=now + timedelta(seconds=seconds.expected),
        fits_window=None if left is None else seconds.high <= left,
        may_fit_window=None if left is None else seconds.low <= left,
    )


def _guess(value: Range, *, digits: int = 3) -> Guess:
    return Guess(
        low=round(value.low, digits), expected=round(value.expected, digits), high=round(value.high, digits)
    )
