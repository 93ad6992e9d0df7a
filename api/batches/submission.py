"""From what a client sent to a batch that can be stored: every check that a shape alone cannot make."""

from collections.abc import Sequence
from dataclasses import replace

from api.batches.schemas import BatchRequest, BatchSubmission, parse_window
from api.checkpoint import ChatTemplateError, Checkpoint
from api.dependencies import Services
from api.errors import InvalidInputError
from api.targets import check_url
from worker.contract.sampling import SamplingParams
from worker.store.batches import NewBatch
from worker.store.requests import NewRequest


def to_batch(services: Services, submission: BatchSubmission) -> NewBatch:
    """Check a submission whole and return the batch it asks for.

    Raises:
        InvalidInputError: a prompt does not fit the model, an id is repeated, or there is too much of it.

    """
    window = submission.completion_window
    if submission.callback_url is not None:
        check_url(services.settings, submission.callback_url, param="callback_url")
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
