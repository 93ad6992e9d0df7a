"""Estimates a submission from measured Steps and past batches."""

from datetime import UTC, datetime, timedelta
from math import ceil

from api.batches.schemas import BatchSubmission, parse_window
from api.batches.submission import to_batch, too_many_requests
from api.dependencies import Services
from api.errors import InvalidInputError
from api.estimates.schemas import Estimate, Finish, Guess, LinesToEstimate
from api.files.endpoints import from_line
from api.inputs.prompts import fit
from worker.forecasts.forecaster import Forecast
from worker.forecasts.ranges import Range
from worker.forecasts.work import distinct, num_at_limit, of_requests, output_tokens
from worker.store.batches.batches import NewBatch
from worker.store.requests import batch_models
from worker.values.sampling import SamplingParams


def estimate(services: Services, submission: BatchSubmission) -> Estimate:
    """Check a submission as `submit` does, and return its estimate.

    Raises:
        InvalidInputError: a field is wrong.

    """
    return _estimate(services, to_batch(services, submission))


def estimate_lines(services: Services, given: LinesToEstimate) -> Estimate:
    """Return the estimate of a batch with these lines.

    Raises:
        InvalidInputError: a line is wrong, or its prompt does not fit the model; `param` names it.
        ModelNotFoundError: a line names another model.

    """
    config, checkpoint = services.settings, services.checkpoint
    if len(given.lines) > config.max_requests_per_batch:
        raise too_many_requests("lines", config.max_requests_per_batch)
    requests = [
        from_line(checkpoint, line.url, line.body, custom_id=line.custom_id, path=f"lines[{i}].body")
        for i, line in enumerate(given.lines)
    ]
    fitted = fit(
        checkpoint,
        requests,
        default=SamplingParams(),
        max_prompt_bytes=config.max_prompt_bytes,
        name=lambda i: f"lines[{i}].body",
    )
    window = None if given.completion_window is None else parse_window(given.completion_window)
    batch = NewBatch(
        params=SamplingParams(),
        requests=fitted,
        priority=given.priority,
        completion_window=window,
        model=batch_models.chosen(fitted, checkpoint.model),
    )
    return _estimate(services, batch)


def _estimate(services: Services, batch: NewBatch) -> Estimate:
    if len(named := batch_models.of_requests(batch.requests, batch.model)) > 1:
        names = ", ".join(model.name for model in named)
        raise InvalidInputError(
            f"model: the requests name several models ({names}); estimate those of each by themselves",
            param="model",
            code="invalid_value",
        )
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
