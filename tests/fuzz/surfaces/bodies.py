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
from api.files.endpoints import from_line
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
from tests.fuzz.surfaces.storable import check_error, check_params, check_request, check_text
from worker.settings import Settings
from worker.store.requests.requests import NewRequest
from worker.values.sampling import SamplingParams

SAMPLING: dict[str, Any] = {
    "max_tokens": 5,
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": 3,
    "min_p": 0.1,
    "seed": 7,
    "stop": ["\n", "end"],
    "stop_token_ids": [3],
    "ignore_eos": False,
    "min_tokens": 1,
    "repetition_penalty": 1.1,
    "frequency_penalty": 0.1,
    "presence_penalty": -0.1,
    "logit_bias": {"5": 1.5, "7": -100},
    "prompt_logprobs": 1,
    "n": 2,
    "best_of": 3,
    "response_format": {
        "type": "json_schema",
        "json_schema": {"name": "a", "schema": {"type": "object", "properties": {"a": {"const": "b"}}}},
    },
}
MESSAGES = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": [{"type": "text", "text": "hello"}]},
    {"role": "assistant", "content": None},
    {"role": "user", "content": "go on"},
]
CHAT: dict[str, Any] = SAMPLING | {
    "model": "tiny",
    "messages": MESSAGES,
    "logprobs": True,
    "top_logprobs": 2,
    "metadata": {"a": "b"},
    "user": "somebody",
    "modalities": ["text"],
    "tools": [],
    "reasoning_effort": "low",
    "thinking_budget": 5,
    "include_reasoning": False,
    "chat_template_kwargs": {"enable_thinking": False, "custom": [1, {"a": None}]},
    "truncate_prompt_tokens": -1,
    "return_token_ids": True,
}
PARAMETERS = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "integer"}}}
FUNCTION = {"name": "f", "description": "Do it.", "parameters": PARAMETERS}
CALLS = [{"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a": "b", "b": 3}'}}]
ENDPOINT = {
    "url": "https://tools.example.com/run",
    "max_turns": 4,
    "forced_turns": 2,
    "timeout_seconds": 2.5,
    "total_seconds": 60,
    "on_failure": "tell_model",
}
TOOL_CHAT: dict[str, Any] = {
    "model": "tiny",
    "messages": [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": None, "tool_calls": CALLS, "reasoning_content": "so"},
        {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "42"}]},
        {"role": "assistant", "content": "I", "reasoning": "think"},
    ],
    "tools": [
        {"type": "function", "function": FUNCTION},
        {"type": "function", "function": FUNCTION | {"name": "g", "strict": True}},
    ],
    "tool_choice": {"type": "function", "function": {"name": "f"}},
    "parallel_tool_calls": False,
    "tool_endpoint": ENDPOINT,
    "max_tokens": 3,
    "enable_thinking": True,
    "thinking_token_budget": 4,
    "verbosity": "medium",
    "continue_final_message": True,
    "add_generation_prompt": False,
    "response_format": {"type": "json_object"},
}
COMPLETION: dict[str, Any] = SAMPLING | {
    "model": "tiny",
    "prompt": ["quick", "brown fox"],
    "logprobs": 1,
    "echo": True,
}
EMBEDDING: dict[str, Any] = {
    "model": "tiny",
    "input": [[1, 2, 3], [4]],
    "dimensions": 8,
    "encoding_format": "base64",
    "pooling": "mean",
}
RESPONSE: dict[str, Any] = {
    "model": "tiny",
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "quick"}]},
        {
            "type": "message",
            "id": "msg_1",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "brown", "annotations": []}],
        },
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "fox"}]},
        {"role": "user", "content": "lazy dog"},
    ],
    "instructions": "be brief",
    "max_output_tokens": 5,
    "temperature": 0.5,
    "top_p": 0.9,
    "top_logprobs": 2,
    "include": ["message.output_text.logprobs"],
    "text": {"format": {"type": "json_schema", "name": "a", "schema": {"type": "object"}}},
    "truncation": "auto",
    "service_tier": "flex",
    "metadata": {"a": "b"},
    "store": False,
    "tools": [{"type": "function", **FUNCTION}],
    "tool_choice": "required",
    "tool_endpoint": ENDPOINT,
}
SUBMISSION: dict[str, Any] = SAMPLING | {
    "requests": [
        {"custom_id": "a", "prompt": "quick", "temperature": 0.0, "guided_regex": "[a-z]+"},
        {
            "custom_id": "b",
            "messages": [{"role": "user", "content": "lazy dog"}],
            "guided_choice": ["a", "b"],
        },
        {
            "messages": [{"role": "user", "content": "lazy dog"}],
            "tools": [{"type": "function", "function": FUNCTION}],
            "tool_choice": "required",
            "tool_endpoint": ENDPOINT,
        },
        {"prompt": "fox", "kind": "embedding", "dimensions": 3},
        {"prompt": "fox", "kind": "scoring", "continuations": [" jumps"]},
    ],
    "callback_url": "https://example.com/hook",
    "priority": 3,
    "completion_window": "24h",
    "max_failed": 3,
    "max_total_tokens": 10_000,
    "cache": "exact",
    "cache_similarity": 0.9,
    "metadata": {"run": "7"},
    "name": "night run",
}
MESSAGE: dict[str, Any] = {
    "model": "tiny",
    "max_tokens": 5,
    "system": [{"type": "text", "text": "be brief", "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "hello"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "so", "signature": ""},
                {"type": "redacted_thinking", "data": "x"},
                {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"a": "b"}},
            ],
        },
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "42", "is_error": True}],
        },
        {"role": "assistant", "content": "I"},
    ],
    "tools": [{"name": "f", "description": "Do it.", "input_schema": PARAMETERS, "strict": True}],
    "tool_choice": {"type": "tool", "name": "f", "disable_parallel_tool_use": True},
    "thinking": {"type": "enabled", "budget_tokens": 1024},
    "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": PARAMETERS}},
    "stop_sequences": ["end"],
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": 3,
    "metadata": {"user_id": "a"},
    "tool_endpoint": ENDPOINT,
}
TOKENS: dict[str, Any] = {"prompt": "quick", "add_special_tokens": False, "return_token_strs": True}
PROMPTS: dict[str, Any] = SAMPLING | {"prompts": ["quick", "brown fox"], "wait_seconds": 3.5}
FILE_BATCH = {
    "input_file_id": "file-0123",
    "endpoint": "/v1/chat/completions",
    "completion_window": "7d",
    "metadata": {"a": "b"},
    "output_expires_after": {"anchor": "created_at", "seconds": 3600},
    "priority": 1,
    "name": "night run",
    "start_after": 5.5,
    "output_uri": "s3://bucket/{batch_id}.parquet",
}
BUCKET_BATCH = {
    "input_uri": "s3://bucket/rows.csv",
    "table": {"prompt": "Label: {text}", "custom_id": "id", "body": {"max_tokens": 3}},
    "endpoint": "/v1/completions",
    "completion_window": "7d",
}
UPLOAD = {
    "purpose": "batch",
    "filename": "a.jsonl",
    "bytes": 12,
    "mime_type": "text/plain",
    "expires_after": {"anchor": "created_at", "seconds": 3600},
}
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
    body = _read(chaos, BatchSubmission, _some(chaos, SUBMISSION, keep=("requests",)))
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
    return _is_fitting(lambda: from_line(checkpoint(), endpoint, body, custom_id=None))


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
