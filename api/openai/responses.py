"""Turns a Result into the body that OpenAI's clients read."""

import base64
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any

from api.generate.outputs import choices_of, num_reasoning_tokens
from api.inputs.checkpoint import Checkpoint, Spelling
from api.openai.answer_schemas import ModelAnswer
from api.openai.bodies import Endpoint
from api.parsing.messages import finish_reason, to_message
from worker.store.requests.models import ServedModelView
from worker.store.requests.result_views import ResultView
from worker.values.caching import Source
from worker.values.logprobs import Logprobs
from worker.values.parsing import Parsing
from worker.values.results import Choice, Payload, to_floats

ID_PREFIXES = {Endpoint.CHAT_COMPLETIONS: "chatcmpl-", Endpoint.COMPLETIONS: "cmpl-"}
OBJECTS = {Endpoint.CHAT_COMPLETIONS: "chat.completion", Endpoint.COMPLETIONS: "text_completion"}
MODEL_OWNER = "headrace"


def to_response(
    checkpoint: Checkpoint, endpoint: Endpoint, result: ResultView, *, batch_id: str
) -> dict[str, Any]:
    """Return the body of a completed result. Its id is the same every time."""
    payload = result.payload or Payload()
    model = result.model
    made_by = {
        "model": checkpoint.name if model is None else model.name,
        "system_fingerprint": None if model is None else system_fingerprint(model),
    }
    if endpoint is Endpoint.EMBEDDINGS:
        return {
            "object": "list",
            **made_by,
            "data": [
                {"object": "embedding", "index": index, "embedding": _to_vector(vector, payload)}
                for index, vector in enumerate(payload.embeddings)
            ],
            "usage": {"prompt_tokens": result.num_prompt_tokens, "total_tokens": result.num_prompt_tokens},
            **_origin(result),
        }
    spelling = checkpoint.spelling_of(None if model is None else model.fingerprint)
    own_id = response_id(endpoint, batch_id, result.position)
    if endpoint is Endpoint.CHAT_COMPLETIONS:
        to_choice = partial(_to_chat_choice, parsing=result.parsing, own_id=own_id)
    else:
        to_choice = partial(_to_completion_choice)
    body = {
        "id": own_id,
        "object": OBJECTS[endpoint],
        "created": int(result.created_at.timestamp()),
        **made_by,
        "choices": [to_choice(spelling, index, choice) for index, choice in enumerate(choices_of(result))],
        "usage": to_usage(result),
        **_origin(result),
    }
    if payload.prompt_logprobs:
        body["prompt_logprobs"] = [to_token_logprobs(spelling, one) for one in payload.prompt_logprobs]
    return body


def system_fingerprint(model: ServedModelView) -> str:
    """Return a model's identity besides its name: its revision, its weights' format, and its dtype."""
    return f"{model.fingerprint}-{model.weight_format}-{model.dtype}"


def _origin(result: ResultView) -> dict[str, Any]:
    """Return the source fields of an answer that was not computed for its request."""
    if result.source is Source.ENGINE:
        return {}
    return {"source": result.source} | (
        {} if result.similarity is None else {"similarity": result.similarity}
    )


def response_id(endpoint: Endpoint, batch_id: str, position: int) -> str:
    """Return the id of a completion."""
    return f"{ID_PREFIXES[endpoint]}{batch_id.removeprefix('batch_')}-{position}"


def to_usage(result: ResultView) -> dict[str, Any]:
    """Return the tokens of a completion, including those of choices that `best_of` did not keep."""
    details = {
        "prompt_tokens_details": {"cached_tokens": result.num_cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": num_reasoning_tokens(result)},
    }
    return to_usage_so_far(result.num_prompt_tokens, result.num_output_tokens) | details


def to_usage_so_far(num_prompt_tokens: int, num_output_tokens: int) -> dict[str, Any]:
    """Return the tokens of a completion that still grows."""
    return {
        "prompt_tokens": num_prompt_tokens,
        "completion_tokens": num_output_tokens,
        "total_tokens": num_prompt_tokens + num_output_tokens,
    }


def to_model(checkpoint: Checkpoint, name: str) -> ModelAnswer:
    """Return the served model as /v1/models shows it under one of its names."""
    return ModelAnswer(
        id=name,
        object="model",
        created=checkpoint.created,
        owned_by=MODEL_OWNER,
        max_model_len=checkpoint.max_model_len,
        type="model",
        display_name=name,
        created_at=datetime.fromtimestamp(checkpoint.created, UTC),
        lifecycle="active",
        max_input_tokens=checkpoint.max_model_len,
    )


def _to_chat_choice(
    spelling: Spelling, index: int, choice: Choice, *, parsing: Parsing | None, own_id: str
) -> dict[str, Any]:
    logprobs = None if choice.logprobs is None else to_chat_logprobs(spelling, choice.logprobs)
    message = to_message(choice.text, parsing, seed=call_seed(own_id, index))
    has_calls = "tool_calls" in message or "function_call" in message
    return {
        "index": index,
        "message": message,
        "logprobs": logprobs,
        "finish_reason": finish_reason(choice.finish_reason, parsing, has_calls=has_calls),
    }


def call_seed(own_id: str, index: int) -> str:
    """Return what the ids of the calls of a choice follow from: the answer's id and the choice's index."""
    return f"{own_id}-{index}"


def _to_completion_choice(spelling: Spelling, index: int, choice: Choice) -> dict[str, Any]:
    logprobs = None if choice.logprobs is None else to_completion_logprobs(spelling, choice.logprobs)
    return {
        "index": index,
        "text": choice.text,
        "logprobs": logprobs,
        "finish_reason": choice.finish_reason,
    }


def to_chat_logprobs(spelling: Spelling, logprobs: Logprobs) -> dict[str, Any]:
    """Return the logprobs of a chat choice, or of a part of it."""
    return {"content": to_token_logprobs(spelling, logprobs), "refusal": None}


def to_token_logprobs(spelling: Spelling, logprobs: Logprobs) -> list[dict[str, Any]]:
    """Return each token with its logprob and the most likely tokens at its position."""
    return [
        _to_token(spelling, token.token_id, token.logprob)
        | {
            "top_logprobs": [
                _to_token(spelling, other, logprob)
                for other, logprob in (token.top_and_own if token.top else ())
            ]
        }
        for token in logprobs
    ]


def to_completion_logprobs(spelling: Spelling, logprobs: Logprobs, *, offset: int = 0) -> dict[str, Any]:
    """Return the logprobs of a completion's choice; `offset` is where its text begins."""
    texts = [spelling.token_text(token.token_id) for token in logprobs]
    return {
        "tokens": texts,
        "token_logprobs": [token.logprob for token in logprobs],
        "top_logprobs": [
            {spelling.token_text(other): logprob for other, logprob in token.top_and_own}
            | {text: token.logprob}  # comes last, as another token may be spelled alike
            for text, token in zip(texts, logprobs, strict=True)
        ],
        "text_offset": _offsets(texts, offset),
    }


def _offsets(texts: Sequence[str], offset: int) -> list[int]:
    offsets = []
    for text in texts:
        offsets.append(offset)
        offset += len(text)
    return offsets


def _to_token(spelling: Spelling, token_id: int, logprob: float) -> dict[str, Any]:
    spelled = spelling.token_bytes(token_id)
    return {"token": spelled.decode(errors="replace"), "logprob": logprob, "bytes": list(spelled)}


def _to_vector(vector: bytes, payload: Payload) -> list[float] | str:
    return base64.b64encode(vector).decode() if payload.is_base64 else to_floats(vector)
