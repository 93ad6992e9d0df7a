"""Estimates a submission from measured Steps and past batches."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from math import ceil

from api.batches.schemas import BatchSubmission, parse_window
from api.batches.submission import to_batch, too_many_requests
from api.dependencies import Services
from api.estimates.schemas import (
    Estimate,
    Finish,
    Guess,
    LinesToEstimate,
    ModelEstimate,
    WorkEstimate,
)
from api.files.endpoints import Bodies
from api.inputs.prompts import fit
from worker.contract.models import Model
from worker.forecasts.forecaster import Forecast
from worker.forecasts.ranges import Range
from worker.forecasts.work import distinct, num_at_limit, of_requests, output_tokens
from worker.store.batches.batches import NewBatch
from worker.store.requests import batch_models
from worker.store.requests.placement import digest_of
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
    bodies = Bodies(checkpoint)
    requests = [
        bodies.from_line(line.url, line.body, custom_id=line.custom_id, path=f"lines[{i}].body")
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
    parts = {
        model: _of_model(services, replace(batch, requests=requests), model)
        for model, requests in batch_models.by_model(batch.requests, batch.model).items()
    }
    if len(parts) == 1:
        (only,) = parts.values()
        return Estimate(**dict(only))
    named = [
        ModelEstimate(name=model.name, revision=model.fingerprint, **dict(part))
        for model, part in parts.items()
        if model is not None
    ]
    return Estimate(models=named, **dict(_together(named)))


def _of_model(services: Services, batch: NewBatch, model: Model | None) -> WorkEstimate:
    forecaster = services.read_forecaster(None if model is None else model.fingerprint)
    digests = [digest_of(request, batch.params) for request in batch.requests]
    different = distinct(batch, digests)
    cost = forecaster.device_seconds(of_requests(batch, different, forecaster.lengths))
    forecast = forecaster.of_new(replace(batch, requests=different))
    outputs = output_tokens(batch, batch.requests, forecaster.lengths)
    return WorkEstimate(
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


def _together(parts: Sequence[WorkEstimate]) -> WorkEstimate:
    """Return the sums over models that run side by side, with the finish of the last one."""
    costs = [part.cost_units for part in parts if part.cost_units is not None]
    ends = [part.finish for part in parts if part.finish is not None]
    return WorkEstimate(
        requests=sum(part.requests for part in parts),
        duplicates=sum(part.duplicates for part in parts),
        input_tokens=sum(part.input_tokens for part in parts),
        max_output_tokens=sum(part.max_output_tokens for part in parts),
        expected_output_tokens=_sum([part.expected_output_tokens for part in parts]),
        expected_at_limit=sum(part.expected_at_limit for part in parts),
        learned_from_batches=sum(part.learned_from_batches for part in parts),
        requests_ahead=sum(part.requests_ahead for part in parts),
        workers=sum(part.workers for part in parts),
        cost_units=_sum(costs) if len(costs) == len(parts) else None,
        finish=_last(ends) if len(ends) == len(parts) else None,
    )


def _sum(guesses: Sequence[Guess]) -> Guess:
    return Guess(
        low=round(sum(one.low for one in guesses), 3),
        expected=round(sum(one.expected for one in guesses), 3),
        high=round(sum(one.high for one in guesses), 3),
    )


def _last(ends: Sequence[Finish]) -> Finish:
    last = max(ends, key=lambda one: one.seconds.expected)
    seconds = Guess(
        low=max(one.seconds.low for one in ends),
        expected=last.seconds.expected,
        high=max(one.seconds.high for one in ends),
    )
    together: dict[str, object] = {"seconds": seconds}
    if last.fits_window is not None:
        together["fits_window"] = all(one.fits_window for one in ends)
        together["may_fit_window"] = all(one.may_fit_window for one in ends)
    return last.model_copy(update=together)


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
