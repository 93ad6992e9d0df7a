"""Creates, reads, lists, cancels and deletes batches of messages."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial

from pydantic import ValidationError

from api.anthropic.answer_schemas import MessageBatch, MessageBatchCounts, MessageBatchList
from api.anthropic.answers import to_result_line
from api.anthropic.bodies import MessageBatchRequest, NewMessage, NewMessageBatch
from api.anthropic.requests import to_message_request
from api.anthropic_errors import OWN_PATH
from api.batches import control
from api.batches.caching import default_cache
from api.batches.experiments import to_experiment
from api.batches.operators import note
from api.batches.schemas import parse_window
from api.batches.service import store
from api.batches.submission import too_many_requests
from api.dependencies import IdempotencyKey, Services
from api.errors import ApiError, ConflictError, InvalidInputError, NotFoundError, invalid_input
from api.inputs.cursors import cut
from api.inputs.prompts import fit
from api.inputs.sampling import refusal
from api.inputs.targets import check_url
from api.inputs.tool_loops import ToolLimits
from api.json_lines import dumps
from worker.contract.states import BatchStatus
from worker.store.batches import batch_views, batches
from worker.store.batches.batch_views import BatchView
from worker.store.batches.batches import NewBatch
from worker.store.requests import batch_models, result_views
from worker.store.requests.requests import NewRequest
from worker.values.results import RequestError
from worker.values.sampling import SamplingParams

PAGE = 500
# A client that lost the answer retries within seconds, and counts its retries in a header.
RETRIES_WITHIN = timedelta(minutes=10)


def create(
    services: Services,
    submission: NewMessageBatch,
    key: IdempotencyKey | None,
    *,
    digest: str,
    is_retry: bool,
) -> MessageBatch:
    """Store the batch; answer a retry with the batch that it made before.

    A message that cannot be run has its result at once. `digest` is the SHA-256 of the body.

    Raises:
        InvalidInputError: a field of the batch is wrong; nothing was stored.
        KeyReusedError: the idempotency key was used for another body.

    """
    if submission.callback_url is not None:
        check_url(services.settings, submission.callback_url, param="callback_url")
    requests = _to_requests(services, submission.requests)
    batch = NewBatch(
        params=SamplingParams(),
        requests=requests,
        callback_url=submission.callback_url,
        priority=submission.priority,
        completion_window=parse_window(submission.completion_window),
        cache=default_cache(services),
        model=batch_models.chosen(requests, services.checkpoint.model),
        endpoint=OWN_PATH,
    )
    experiment = to_experiment(services, batch, submission.experiment)
    found_within = None
    if key is None:
        # Every body is a key, but only a retry looks for what it made.
        key = IdempotencyKey(f"body {digest}", digest)
        found_within = RETRIES_WITHIN if is_retry else timedelta()
    return _to_answer(store(services, batch, key, found_within=found_within, experiment=experiment))


def _to_requests(services: Services, given: list[MessageBatchRequest]) -> list[NewRequest]:
    """Return the requests of messages; one whose `params` are wrong has an error."""
    most = services.settings.max_requests_per_batch
    if len(given) > most:
        raise too_many_requests("requests", most)
    first: dict[str, int] = {}
    for i, request in enumerate(given):
        if (earlier := first.setdefault(request.custom_id, i)) != i:
            param = f"requests[{i}].custom_id"
            raise InvalidInputError(f"{param}: is the same as requests[{earlier}].custom_id", param=param)
    found = [_unless_wrong(one.custom_id, partial(_to_request, services, one)) for one in given]
    right = [request for request in found if request.error is None]
    try:
        fitted = iter(_fit(services, right))
    except InvalidInputError:  # it does not say whose prompt
        return [
            request
            if request.error is not None
            else _unless_wrong(request.custom_id, partial(_fit_one, services, request))
            for request in found
        ]
    return [request if request.error is not None else next(fitted) for request in found]


def _to_request(services: Services, given: MessageBatchRequest) -> NewRequest:
    try:
        body = NewMessage.model_validate(given.params)
    except ValidationError as error:
        raise invalid_input(error.errors(include_url=False)[0], given.params) from error
    if body.stream:
        raise refusal("", "stream", "must not be true: a batch cannot be streamed")
    found = to_message_request(services.checkpoint, body, custom_id=given.custom_id)
    ToolLimits.of(services.settings).check(found.tool_loop, "")
    return found


def _fit(services: Services, asked: list[NewRequest]) -> list[NewRequest]:
    return fit(
        services.checkpoint,
        asked,
        default=SamplingParams(),
        max_prompt_bytes=services.settings.max_prompt_bytes,
        name=lambda _: "messages",
    )


def _fit_one(services: Services, asked: NewRequest) -> NewRequest:
    return _fit(services, [asked])[0]


def _unless_wrong(custom_id: str | None, make: Callable[[], NewRequest]) -> NewRequest:
    """Return a request, or one in its place that fails at once with the reason."""
    try:
        return make()
    except ApiError as error:
        problem = RequestError(error.code or "invalid_value", error.message)
        return NewRequest(prompt="", max_tokens=0, custom_id=custom_id, error=problem)


def get(services: Services, batch_id: str) -> MessageBatch:
    """Return the current state of a batch; raises NotFoundError."""
    return _to_answer(_view(services, batch_id))


def page(services: Services, *, after: str | None, before: str | None, limit: int) -> MessageBatchList:
    """Return a page of batches, newest first.

    Raises:
        UnknownCursorError: there is no such batch to continue from.
        InvalidInputError: both cursors were given.

    """
    if after is not None and before is not None:
        raise InvalidInputError("before_id: cannot be combined with after_id", param="before_id")
    with services.store.transaction() as session:
        found = batch_views.page_of_endpoint(session, OWN_PATH, after=after, before=before, limit=limit + 1)
    views, has_more = cut(found, limit)
    data = [_to_answer(view) for view in (views if before is None else reversed(views))]
    return MessageBatchList(
        data=data,
        has_more=has_more,
        first_id=data[0].id if data else None,
        last_id=data[-1].id if data else None,
    )


def cancel(services: Services, batch_id: str) -> MessageBatch:
    """Ask a batch to stop; an ended batch stays as it is; raises NotFoundError."""
    _view(services, batch_id)
    with services.store.transaction() as session:
        batches.cancel(session, batch_id)
        note(services, session, "batch.cancel", batch_id)
    return get(services, batch_id)


def remove(services: Services, batch_id: str) -> None:
    """Delete a batch that has ended; raises NotFoundError, or ConflictError if it has not ended."""
    _view(services, batch_id)
    control.remove(services, batch_id)


def check_results(services: Services, batch_id: str) -> None:
    """Raise NotFoundError or ConflictError if the results of a batch cannot be read as a whole."""
    view = _view(services, batch_id)
    if not view.status.is_terminal:
        raise ConflictError(
            f"{batch_id} has not ended, so it has no `results_url`. /v1/batch/{batch_id}/results has what is"
            " there already."
        )
    if view.results_dropped_at is not None:
        raise NotFoundError(
            f"The results of {batch_id} were deleted at {view.results_dropped_at:%Y-%m-%d %H:%M} UTC.",
            param="batch_id",
            code="results_dropped",
        )


def result_lines(services: Services, batch_id: str) -> Iterator[str]:
    """Yield the results of a batch as JSON lines, in order of completion."""
    after = 0
    while True:
        with services.store.transaction() as session:
            found = result_views.page(session, batch_id, after=after, limit=PAGE)
        for result in found:
            yield dumps(to_result_line(services.checkpoint, result, batch_id=batch_id)) + "\n"
        if len(found) < PAGE:
            return
        after = found[-1].sequence


def _view(services: Services, batch_id: str) -> BatchView:
    with services.store.look() as session:
        view = batch_views.get(session, batch_id)
    if view is None or view.endpoint != OWN_PATH:
        raise NotFoundError(f"There is no batch of messages {batch_id}.", param="batch_id")
    return view


def _to_answer(view: BatchView) -> MessageBatch:
    has_ended = view.status.is_terminal
    has_results = has_ended and view.results_dropped_at is None
    is_expired = view.status is BatchStatus.EXPIRED
    return MessageBatch(
        id=view.id,
        processing_status="ended"
        if has_ended
        else "in_progress"
        if view.cancelled_at is None
        else "canceling",
        request_counts=MessageBatchCounts(
            processing=view.num_pending,
            succeeded=view.num_completed,
            errored=view.num_failed,
            canceled=0 if is_expired else view.num_cancelled,
            expired=view.num_cancelled if is_expired else 0,
        ),
        created_at=view.created_at,
        expires_at=view.expires_at or view.created_at,
        ended_at=view.finished_at,
        cancel_initiated_at=view.cancelled_at,
        archived_at=view.results_dropped_at,
        results_url=f"{OWN_PATH}/batches/{view.id}/results" if has_results else None,
        experiment_id=view.experiment_id,
    )
