"""Bodies of JSON: from bytes to what would be stored, by the plain routes and by OpenAI's."""

import json
from collections.abc import Callable
from functools import cache
from typing import Any, cast

from pydantic import BaseModel, ValidationError

from api.anthropic.bodies import NewMessage
from api.anthropic.requests import to_message_request
from api.batches.schemas import BatchSubmission
from api.batches.submission import to_batch
from api.dependencies import Services
from api.errors import ApiError, invalid_input
from api.file_batches.schemas import FileBatchSubmission
from api.files.endpoints import Bodies
from api.files.schemas import UploadCompletion, UploadSubmission
from api.generate import service as generate
from api.generate.schemas import GenerateBody, PromptsBody, SyncBody
from api.inputs.prompts import fit
from api.openai.bodies import Endpoint
from api.tokenization.routes import detokenize, tokenize
from api.tokenization.schemas import DetokenizeBody, TokenizeBody
from api.webhooks.schemas import EndpointChange, NewEndpointBody, Replay, Rotation
from tests.fuzz.chaos import Chaos
from tests.fuzz.surfaces.model import checkpoint
from tests.fuzz.surfaces.samples import (
    BUCKET_BATCH,
    CHAT,
    COMPLETION,
    EMBEDDING,
    FILE_BATCH,
    MESSAGE,
    PROMPTS,
    RESPONSE,
    SAMPLING,
    SUBMISSION,
    TOKENS,
    TOOL_CHAT,
    TOOL_SUBMISSION,
    UPLOAD,
)
from tests.fuzz.surfaces.storable import check_error, check_params, check_request, check_text
from worker.settings import Settings
from worker.store.requests.requests import NewRequest
from worker.values.sampling import SamplingParams

OTHERS: tuple[tuple[type[BaseModel], dict[str, Any]], ...] = (
    (FileBatchSubmission, FILE_BATCH),
    (FileBatchSubmission, BUCKET_BATCH),
    (UploadSubmission, UPLOAD),
    (UploadCompletion, {"part_ids": ["part_1", "part_2"], "md5": "0" * 32}),
    (NewEndpointBody, {"url": "https://example.com", "event_types": ["batch.completed"], "description": "x"}),
    (EndpointChange, {"url": "https://example.com", "enabled": False}),
    (Rotation, {"overlap_seconds": 5}),
    (Replay, {"endpoint_id": "we_1"}),
)


class NoPlaceError(AssertionError):
    """A check of a body asked the database."""


@cache
def services() -> Services:
    """Return what checks of bodies may use: a checkpoint and settings, and nothing that is far away."""
    config = Settings(
        database_url="postgresql://nowhere/none", redis_url="redis://nowhere", max_prompt_bytes=2000
    )
    return Services(
        settings=config,
        checkpoint=checkpoint(),
        store=cast("Any", None),
        everybody=cast("Any", None),
        learned=cast("Any", None),
        broker=cast("Any", None),
        feeds=cast("Any", None),
        rate_limiter=cast("Any", None),
        blobs=cast("Any", None),
        traffic=cast("Any", None),
    )


def _read(chaos: Chaos, model: type[BaseModel], valid: dict[str, Any]) -> Any:
    """Return what a route is given of spoiled bytes; None: they are refused, and the error can be told."""
    data = chaos.spelled(chaos.spoiled(valid))
    if chaos.random() < 0.2:
        data = chaos.damaged(data)
    try:
        value = json.loads(data)  # as FastAPI does; what this raises is answered 400
    except (ValueError, RecursionError):
        return None
    try:
        return model.model_validate(value)
    except ValidationError as error:
        check_error(invalid_input(error.errors()[0]))
        return None


def submission(chaos: Chaos) -> bool:
    """Read a batch on its way in."""
    valid = SUBMISSION if chaos.random() < 0.7 else TOOL_SUBMISSION
    body = _read(chaos, BatchSubmission, _some(chaos, valid, keep=("requests",)))
    if body is None or "semantic" in {body.cache, *(one.cache for one in body.requests or [])}:
        return False
    try:
        batch = to_batch(services(), body)
    except ApiError as error:
        check_error(error)
        return False
    check_params(batch.params)
    for request in batch.requests:
        check_request(request, request.params or batch.params)
    for key, value in batch.metadata.items():
        check_text(key + value)
    return True


def waiting(chaos: Chaos) -> bool:
    """Read what somebody waits for."""
    model, valid = chaos.choice(
        (
            (GenerateBody, SAMPLING | {"prompt": "fox", "stream": True, "optimization": "none"}),
            (SyncBody, PROMPTS),
            (PromptsBody, PROMPTS),
        )
    )
    body = _read(chaos, model, _some(chaos, valid, keep=("prompt", "prompts")))
    if body is None:
        return False
    prompts = [body.prompt] if isinstance(body, GenerateBody) else body.prompts
    try:
        batch = generate.to_batch(services(), body, prompts, max_tokens=100)
    except ApiError as error:
        check_error(error)
        return False
    for request in batch.requests:
        check_request(request, request.params or batch.params)
    return True


def openai(chaos: Chaos) -> bool:
    """Read what OpenAI's clients send."""
    endpoint = chaos.choice(list(Endpoint))
    valid = {
        Endpoint.CHAT_COMPLETIONS: chaos.choice((CHAT, TOOL_CHAT)),
        Endpoint.COMPLETIONS: COMPLETION,
        Endpoint.EMBEDDINGS: EMBEDDING,
        Endpoint.RESPONSES: RESPONSE,
    }[endpoint]
    body = chaos.spoiled(_some(chaos, valid, keep=("model", "messages", "prompt", "input")))
    return _is_fitting(lambda: _twice(endpoint, body))


def _twice(endpoint: Endpoint, body: object) -> NewRequest:
    """Read a line's body anew, and as one like the last one."""
    bodies = Bodies(checkpoint())
    found = bodies.from_line(endpoint, body, custom_id=None)
    assert bodies.from_line(endpoint, body, custom_id=None) == found
    return found


def anthropic(chaos: Chaos) -> bool:
    """Read what Anthropic's clients send."""
    valid = chaos.choice((MESSAGE, MESSAGE | {"messages": MESSAGE["messages"][:1]}))
    body = _read(chaos, NewMessage, _some(chaos, valid, keep=("model", "messages", "max_tokens")))
    if body is None:
        return False
    try:
        request = to_message_request(checkpoint(), body)
    except ApiError as error:
        check_error(error)
        return False
    assert request.params is not None
    check_request(request, request.params)
    return True


def tokens(chaos: Chaos) -> bool:
    """Read texts to tokenize, and tokens to write as text."""
    if chaos.random() < 0.3:
        numbers = _read(chaos, DetokenizeBody, {"tokens": [1, 2, 300], "model": "tiny"})
        if numbers is not None:
            try:
                check_text(detokenize(numbers, services()).prompt.replace("\x00", ""))
            except ApiError as error:
                check_error(error)
        return numbers is not None
    chat = {name: TOOL_CHAT[name] for name in ("messages", "tools", "continue_final_message")}
    body = _read(chaos, TokenizeBody, _some(chaos, chaos.choice((TOKENS, chat)), keep=("prompt", "messages")))
    if body is None:
        return False
    try:
        found = tokenize(body, services())
    except ApiError as error:
        check_error(error)
        return False
    assert found.count == len(found.tokens)
    return True


def _is_fitting(make: Callable[[], NewRequest]) -> bool:
    """Return whether a request is made that fits the model and the store."""
    try:
        (fitted,) = fit(
            checkpoint(), [make()], default=SamplingParams(), max_prompt_bytes=2000, name=lambda _: "input"
        )
    except ApiError as error:
        check_error(error)
        return False
    assert fitted.params is not None
    check_request(fitted, fitted.params)
    return True


def others(chaos: Chaos) -> bool:
    """Read every other body."""
    model, valid = chaos.choice(OTHERS)
    body = _read(chaos, model, valid)
    if body is None:
        return False
    for value in body.model_dump().values():
        if isinstance(value, str):
            check_text(value)
    return True


def _some(chaos: Chaos, valid: dict[str, Any], *, keep: tuple[str, ...]) -> dict[str, Any]:
    """Return a body with only some of its fields: with all of them one wrong field hides the others."""
    share = chaos.random()
    return {key: value for key, value in valid.items() if key in keep or chaos.random() < share}
