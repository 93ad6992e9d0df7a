"""Turns a client's submission into a batch to store, and makes the checks that its schema cannot."""

from collections.abc import Sequence

from api.batches.caching import batch_cache
from api.batches.schemas import BatchRequest, BatchSubmission, parse_window
from api.batches.starts import to_instant
from api.dependencies import Services
from api.errors import InvalidInputError
from api.inputs.chat import ToolUse, to_chat, to_turns
from api.inputs.checkpoint import Checkpoint
from api.inputs.models import find_checkpoint
from api.inputs.prompts import fit
from api.inputs.reasoning import ReasoningFields
from api.inputs.sampling import SamplingFields, refusal, to_params
from api.inputs.targets import check_url
from api.inputs.tool_loops import ToolLimits, to_loop
from api.inputs.tools import ToolEndpoint, ToolFields
from worker.store.batches.batches import NewBatch
from worker.store.requests import batch_models
from worker.store.requests.requests import NewRequest
from worker.values.caching import CacheMode
from worker.values.requests import EmbeddingParams, Params, Pooling, RequestKind, ScoringParams
from worker.values.sampling import SamplingParams

EMBEDDING_FIELDS = ("pooling", "normalize", "dimensions")
# The fields that only requests of one kind have.
OWN_FIELDS: dict[RequestKind, Sequence[str]] = {
    RequestKind.GENERATION: (
        *SamplingFields.model_fields,
        *ToolFields.model_fields,
        *ReasoningFields.model_fields,
    ),
    RequestKind.EMBEDDING: EMBEDDING_FIELDS,
    RequestKind.SCORING: ("continuations",),
}


def to_batch(services: Services, submission: BatchSubmission) -> NewBatch:
    """Check the whole submission and return the batch that it asks for.

    Raises:
        InvalidInputError: a prompt does not fit the model, a custom_id is repeated, there are too many
            requests, or another field is wrong.
        PermissionDeniedError: the tenant may not use the semantic cache.

    """
    window = submission.completion_window
    if submission.callback_url is not None:
        check_url(services.settings, submission.callback_url, param="callback_url")
    checkpoint = services.checkpoint
    if submission.model is not None:
        checkpoint = find_checkpoint(checkpoint, submission.model)
    params = to_params(submission, SamplingParams(), checkpoint)
    requests = _to_requests(services, submission, checkpoint, params)
    return NewBatch(
        params=params,
        requests=requests,
        callback_url=submission.callback_url,
        priority=submission.priority,
        name=submission.name,
        metadata=dict(submission.metadata),
        start_after=to_instant(services, submission.start_after),
        completion_window=None if window is None else parse_window(window),
        deadline=submission.deadline,
        max_failed=submission.max_failed,
        max_total_tokens=submission.max_total_tokens,
        cache=batch_cache(services, submission),
        cache_similarity=submission.cache_similarity,
        cache_ttl_seconds=submission.cache_ttl_seconds,
        model=batch_models.chosen(requests, checkpoint.model),
    )


def _to_requests(
    services: Services, submission: BatchSubmission, own: Checkpoint, batch_params: SamplingParams
) -> list[NewRequest]:
    if submission.prompts is not None:
        field = "prompts"
        found = [
            NewRequest(
                prompt=prompt,
                max_tokens=batch_params.max_tokens,
                timeout_seconds=submission.timeout_seconds,
                model=own.model,
            )
            for prompt in submission.prompts
        ]
    else:
        field = "requests"
        given = submission.requests or []
        _check_custom_ids(given)
        checkpoints = [
            own if one.model is None else find_checkpoint(services.checkpoint, one.model, f"requests[{i}]")
            for i, one in enumerate(given)
        ]
        for checkpoint in set(checkpoints) - {own}:  # whose vocabulary and context are others
            to_params(submission, SamplingParams(), checkpoint)
        found = [
            to_request(
                checkpoint,
                request,
                batch_params,
                f"requests[{i}]",
                timeout_seconds=submission.timeout_seconds,
                tool_endpoint=submission.tool_endpoint,
            )
            for i, (request, checkpoint) in enumerate(zip(given, checkpoints, strict=True))
        ]
        limits = ToolLimits.of(services.settings)
        for i, one in enumerate(found):
            limits.check(one.tool_loop, f"requests[{i}]")
    most = services.settings.max_requests_per_batch
    if len(found) > most:
        raise too_many_requests(field, most)
    return fit(
        services.checkpoint,
        found,
        default=batch_params,
        max_prompt_bytes=services.settings.max_prompt_bytes,
        name=lambda i: f"{field}[{i}]",
    )


def too_many_requests(field: str, most: int) -> InvalidInputError:
    """Return the error for a list with more requests than a batch may have."""
    return InvalidInputError(f"{field}: must have at most {most} requests", param=field, code="wrong_length")


def _check_custom_ids(given: Sequence[BatchRequest]) -> None:
    first: dict[str, int] = {}
    for i, request in enumerate(given):
        if request.custom_id is not None and first.setdefault(request.custom_id, i) != i:
            param = f"requests[{i}].custom_id"
            earlier = first[request.custom_id]
            raise InvalidInputError(f"{param}: is the same as requests[{earlier}].custom_id", param=param)


def to_request(
    checkpoint: Checkpoint,
    request: BatchRequest,
    batch_params: SamplingParams,
    path: str,
    *,
    timeout_seconds: float | None = None,
    tool_endpoint: ToolEndpoint | None = None,
) -> NewRequest:
    """Return one request of a batch, whose tokens are not counted yet; raises InvalidInputError."""
    params = _to_own_params(checkpoint, request, batch_params, path)
    prompt, loop = request.prompt, None
    if request.messages is not None:
        use = ToolUse.of(request, path)
        given = params if isinstance(params, SamplingParams) else batch_params
        turns = to_turns(request.messages, path)
        endpoint = request.tool_endpoint or (tool_endpoint if use.callable else None)
        if endpoint is None:
            prompt, chat_params = to_chat(checkpoint, turns, use, given, path, request)
        else:
            prompt, chat_params, loop = to_loop(checkpoint, turns, use, given, path, request, endpoint)
        if chat_params is not given and request.kind is RequestKind.GENERATION:
            params = chat_params
    sampling = params if isinstance(params, SamplingParams) else batch_params
    return NewRequest(
        prompt=prompt or "",
        max_tokens=sampling.max_tokens,
        custom_id=request.custom_id,
        params=params,
        add_special_tokens=request.messages is None,
        cache=None if request.cache is None else CacheMode(request.cache),
        cache_ttl_seconds=request.cache_ttl_seconds,
        priority=request.priority,
        timeout_seconds=timeout_seconds if request.timeout_seconds is None else request.timeout_seconds,
        tool_loop=loop,
        expected=request.expected,
        model=checkpoint.model,
    )


def _to_own_params(
    checkpoint: Checkpoint, request: BatchRequest, batch_params: SamplingParams, path: str
) -> Params | None:
    """Return a request's own parameters; None if it uses the batch's."""
    for kind, names in OWN_FIELDS.items():
        for name in names:
            if kind is not request.kind and getattr(request, name) is not None:
                raise refusal(path, name, f"is not a field of a request of kind {request.kind}")
    if request.kind is RequestKind.EMBEDDING:
        given = {name: value for name in EMBEDDING_FIELDS if (value := getattr(request, name)) is not None}
        return EmbeddingParams(**given | {"pooling": Pooling(request.pooling or Pooling.LAST)})
    if request.kind is RequestKind.SCORING:
        if request.continuations is None:
            raise refusal(path, "continuations", "is required")
        return ScoringParams(tuple(request.continuations))
    params = to_params(request, batch_params, checkpoint, path)
    return None if params is batch_params else params
