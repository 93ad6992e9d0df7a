"""From a submission to a stored batch, and from stored rows to answers."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from api.batches.schemas import (
    BatchAnswer,
    BatchRequest,
    BatchStats,
    BatchSubmission,
    Callback,
    Counts,
    InputTokensDetails,
    RequestErrorAnswer,
    RequestUsage,
    ResultAnswer,
    Tokens,
    Usage,
    parse_window,
)
from api.checkpoint import ChatTemplateError, Checkpoint
from api.dependencies import IdempotencyKey, Services
from api.errors import InvalidInputError, KeyReusedError, NotFoundError
from worker.contract.events import INLINE_OUTPUT_BYTES, INLINE_OUTPUTS
from worker.contract.sampling import SamplingParams
from worker.contract.states import BatchStatus
from worker.store import batches, idempotency, requests, webhooks
from worker.store.batches import BatchView, NewBatch
from worker.store.requests import NewRequest, ResultView
from worker.store.webhooks import DeliveryView

PAGE = 500


def submit(services: Services, submission: BatchSubmission, key: IdempotencyKey | None) -> BatchView:
    """Check a submission whole, then store it in one transaction.

    Raises:
        InvalidInputError: a field is wrong; nothing was stored.
        KeyReusedError: the idempotency key came with another body before.

    """
    batch = _to_batch(services, submission)
    with services.store.transaction() as session:
        batch_id = None
        if key is not None:
            try:
                batch_id = idempotency.find(session, key.key, key.fingerprint)
            except idempotency.FingerprintMismatchError as error:
                raise KeyReusedError(
                    "this Idempotency-Key was used for another body", param="Idempotency-Key"
                ) from error
        if batch_id is None:
            batch_id = batches.submit(session, batch, shard_size=services.settings.shard_size)
            if key is not None:
                idempotency.remember(session, key.key, key.fingerprint, batch_id)
        view = batches.get(session, batch_id)
    if view is None:
        raise NotFoundError("the batch this Idempotency-Key made is gone", param="Idempotency-Key")
    return view


def _to_batch(services: Services, submission: BatchSubmission) -> NewBatch:
    window = submission.completion_window
    return NewBatch(
        params=_batch_params(submission),
        requests=_to_requests(services, submission),
        callback_url=submission.callback_url,
        priority=submission.priority,
        metadata=dict(submission.metadata),
        completion_window=None if window is None else parse_window(window),
    )


def _batch_params(submission: BatchSubmission) -> SamplingParams:
    return SamplingParams(
        max_tokens=submission.max_tokens,
        temperature=submission.temperature,
        top_p=submission.top_p,
        top_k=submission.top_k,
        min_p=submission.min_p,
        stop=_stop(submission.stop),
        seed=submission.seed,
        ignore_eos=submission.ignore_eos,
    )


def _stop(stop: str | list[str]) -> tuple[str, ...]:
    return (stop,) if isinstance(stop, str) else tuple(stop)


def _to_requests(services: Services, submission: BatchSubmission) -> list[NewRequest]:
    batch_params = _batch_params(submission)
    if submission.prompts is not None:
        name = "prompts[{}]"
        found = [
            NewRequest(prompt=prompt, max_tokens=batch_params.max_tokens) for prompt in submission.prompts
        ]
    else:
        name = "requests[{}]"
        given = submission.requests or []
        _check_custom_ids(given)
        found = [
            _to_request(services.checkpoint, request, batch_params, name.format(i))
            for i, request in enumerate(given)
        ]
    most = services.settings.max_requests_per_batch
    if len(found) > most:
        raise InvalidInputError(
            f"{name.partition('[')[0]}: at most {most} requests fit a batch", param=name.partition("[")[0]
        )
    return _fitted(services, found, name)


def _check_custom_ids(given: Sequence[BatchRequest]) -> None:
    first: dict[str, int] = {}
    for i, request in enumerate(given):
        if request.custom_id is not None and first.setdefault(request.custom_id, i) != i:
            param = f"requests[{i}].custom_id"
            earlier = first[request.custom_id]
            raise InvalidInputError(f"{param}: the same as requests[{earlier}].custom_id", param=param)


def _to_request(
    checkpoint: Checkpoint, request: BatchRequest, batch_params: SamplingParams, path: str
) -> NewRequest:
    own = request.model_dump(exclude={"custom_id", "prompt", "messages"}, exclude_none=True)
    if "stop" in own:
        own["stop"] = _stop(own["stop"])
    params = replace(batch_params, **own) if own else None
    prompt = request.prompt
    if request.messages is not None:
        try:
            prompt = checkpoint.render_chat([message.model_dump() for message in request.messages])
        except ChatTemplateError as error:
            raise InvalidInputError(f"{path}.messages: {error}", param=f"{path}.messages") from error
    return NewRequest(
        prompt=prompt or "",
        max_tokens=(params or batch_params).max_tokens,
        custom_id=request.custom_id,
        params=params,
        add_special_tokens=request.messages is None,
    )


def _fitted(services: Services, found: list[NewRequest], name: str) -> list[NewRequest]:
    """Count every prompt's tokens, check them against the model's context, cap max_tokens by what is left."""
    limit = services.settings.max_prompt_bytes
    for i, request in enumerate(found):
        if len(request.prompt) > limit or len(request.prompt.encode()) > limit:
            raise InvalidInputError(
                f"{name.format(i)}: the prompt is over the limit of {limit} bytes", param=name.format(i)
            )
    fitted = found.copy()
    context = services.checkpoint.max_model_len
    for add_special_tokens in (True, False):
        chosen = [i for i, request in enumerate(found) if request.add_special_tokens == add_special_tokens]
        prompts = [found[i].prompt for i in chosen]
        counts = services.checkpoint.count_tokens(prompts, add_special_tokens=add_special_tokens)
        for i, count in zip(chosen, counts, strict=True):
            if count >= context:
                raise InvalidInputError(
                    f"{name.format(i)}: the prompt has {count} tokens; the context of model "
                    f"{services.checkpoint.name} is {context}, and one must be left for the output",
                    param=name.format(i),
                    code="context_length_exceeded",
                )
            if count == 0:
                raise InvalidInputError(f"{name.format(i)}: the prompt has no tokens", param=name.format(i))
            max_tokens = min(found[i].max_tokens, context - count)
            fitted[i] = replace(found[i], num_prompt_tokens=count, max_tokens=max_tokens)
    return fitted


def answer(services: Services, batch_id: str, *, include_outputs: bool | None) -> BatchAnswer:
    """Return a batch as it stands now; `include_outputs=None` includes those of a small batch.

    Raises:
        NotFoundError: no such batch.

    """
    with services.store.transaction() as session:
        view = batches.get(session, batch_id)
        if view is None:
            raise NotFoundError(f"no batch {batch_id}", param="batch_id")
        delivery = webhooks.delivery_of(session, batch_id)
        outputs = None
        if include_outputs is not False and view.num_requests <= INLINE_OUTPUTS:
            outputs = requests.outputs(session, batch_id)
    if include_outputs is None and outputs and sum(len(text or "") for text in outputs) > INLINE_OUTPUT_BYTES:
        outputs = None
    return _to_answer(view, delivery, outputs)


def _to_answer(
    view: BatchView, delivery: DeliveryView | None, outputs: list[str | None] | None
) -> BatchAnswer:
    return BatchAnswer(
        batch_id=view.id,
        status=view.status,
        progress=round(view.progress, 4),
        counts=Counts(
            total=view.num_requests,
            pending=view.num_requests - view.num_settled,
            completed=view.num_completed,
            failed=view.num_failed,
            cancelled=view.num_cancelled,
        ),
        tokens=Tokens(done=view.output_tokens + view.running_tokens, max=view.max_output_tokens),
        usage=Usage(
            input_tokens=view.input_tokens,
            input_tokens_details=InputTokensDetails(cached_tokens=view.cached_tokens),
            output_tokens=view.output_tokens,
            total_tokens=view.input_tokens + view.output_tokens,
        ),
        eta_seconds=_eta_seconds(view),
        priority=view.priority,
        metadata=view.metadata,
        callback=_to_callback(view, delivery),
        created_at=view.created_at,
        started_at=view.started_at,
        expires_at=view.expires_at,
        finished_at=view.finished_at,
        outputs=outputs,
    )


def _to_callback(view: BatchView, delivery: DeliveryView | None) -> Callback | None:
    if view.callback_url is None:
        return None
    if delivery is None:
        return Callback(url=view.callback_url)
    return Callback(
        url=view.callback_url,
        event_id=delivery.event_id,
        state=delivery.state,
        attempts=delivery.attempts,
        last_status_code=delivery.last_status_code,
        last_error=delivery.last_error,
    )


def _eta_seconds(view: BatchView) -> float | None:
    if view.status is not BatchStatus.PROCESSING or view.started_at is None or view.progress <= 0:
        return None
    elapsed = (view.read_at - view.started_at).total_seconds()
    return round(elapsed * (1 - view.progress) / view.progress, 1)


def cancel(services: Services, batch_id: str) -> None:
    """Ask a batch to stop.

    Raises:
        NotFoundError: no such batch.

    """
    with services.store.transaction() as session:
        if not batches.cancel(session, batch_id):
            raise NotFoundError(f"no batch {batch_id}", param="batch_id")


def page(services: Services, batch_id: str, *, after: int, limit: int) -> tuple[list[ResultAnswer], bool]:
    """Return results after a cursor, and whether more may come.

    Raises:
        NotFoundError: no such batch.

    """
    with services.store.transaction() as session:
        # The batch first: a result that is saved between the two reads must not be taken for the last.
        view = batches.get(session, batch_id)
        if view is None:
            raise NotFoundError(f"no batch {batch_id}", param="batch_id")
        rows = requests.results_page(session, batch_id, after=after, limit=limit)
    last = rows[-1].sequence if rows else after
    return [_to_result(row) for row in rows], not (view.status.is_terminal and last >= view.num_settled)


def lines_so_far(services: Services, batch_id: str, *, after: int) -> Iterator[str]:
    """Yield the results there are, as JSON lines, page by page."""
    while True:
        found, _ = page(services, batch_id, after=after, limit=PAGE)
        yield from (result.model_dump_json() + "\n" for result in found)
        if len(found) < PAGE:
            return
        after = found[-1].sequence


def _to_result(row: ResultView) -> ResultAnswer:
    error = None
    if row.error_code is not None:
        error = RequestErrorAnswer(code=row.error_code, message=row.error_message or "")
    return ResultAnswer(
        sequence=row.sequence,
        index=row.position,
        custom_id=row.custom_id,
        status=row.outcome,
        output=row.output,
        finish_reason=row.finish_reason,
        usage=RequestUsage(
            input_tokens=row.num_prompt_tokens,
            cached_tokens=row.num_cached_tokens,
            output_tokens=row.num_output_tokens,
        ),
        error=error,
    )


def stats(services: Services) -> BatchStats:
    """Return how many batches stand where."""
    with services.store.transaction() as session:
        counts = batches.count_by_status(session)
    return BatchStats(total_batches=sum(counts.values()), **{str(k): v for k, v in counts.items()})
