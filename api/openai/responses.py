"""From a result to the body that OpenAI's clients read."""

import base64
from collections.abc import Sequence
from typing import Any

from api.checkpoint import Checkpoint
from api.openai.answer_schemas import ModelAnswer
from api.openai.bodies import Endpoint
from worker.contract.caching import Source
from worker.contract.results import ChoiceResult, Logprobs, Payload, to_floats
from worker.store.result_views import ResultView

ID_PREFIXES = {Endpoint.CHAT_COMPLETIONS: "chatcmpl-", Endpoint.COMPLETIONS: "cmpl-"}
OBJECTS = {Endpoint.CHAT_COMPLETIONS: "chat.completion", Endpoint.COMPLETIONS: "text_completion"}
MODEL_OWNER = "headrace"


def to_response(
    checkpoint: Checkpoint, endpoint: Endpoint, result: ResultView, *, batch_id: str
) -> dict[str, Any]:
    """Return the body of a completed result. The id is the same whenever it is asked for."""
    payload = result.payload or Payload()
    if endpoint is Endpoint.EMBEDDINGS:
        return {
            "object": "list",
            "model": checkpoint.name,
            "data": [
                {"object": "embedding", "index": index, "embedding": _to_vector(vector, payload)}
                for index, vector in enumerate(payload.embeddings)
            ],
            "usage": {"prompt_tokens": result.num_prompt_tokens, "total_tokens": result.num_prompt_tokens},
            **_origin(result),
        }
    choices = payload.choices or (ChoiceResult(result.output or "", result.finish_reason or "stop"),)
    to_choice = _to_chat_choice if endpoint is Endpoint.CHAT_COMPLETIONS else _to_completion_choice
    body = {
        "id": response_id(endpoint, batch_id, result.position),
        "object": OBJECTS[endpoint],
        "created": int(result.created_at.timestamp()),
        "model": checkpoint.name,
        "choices": [to_choice(checkpoint, index, choice) for index, choice in enumerate(choices)],
        "usage": to_usage(result),
        "system_fingerprint": None,
        **_origin(result),
    }
    if payload.prompt_logprobs:
        body["prompt_logprobs"] = [to_token_logprobs(checkpoint, one) for one in payload.prompt_logprobs]
    return body


def _origin(result: ResultView) -> dict[str, Any]:
    """Return what is said of an answer that was not computed for its request."""
    if result.source is Source.ENGINE:
        return {}
    return {"source": result.source} | (
        {} if result.similarity is None else {"similarity": result.similarity}
    )


def response_id(endpoint: Endpoint, batch_id: str, position: int) -> str:
    """Return the id of a completion."""
    return f"{ID_PREFIXES[endpoint]}{batch_id.removeprefix('batch_')}-{position}"


def to_usage(result: ResultView) -> dict[str, Any]:
    """Return the tokens of a completion; those of choices that `best_of` did not keep count."""
    return {
        "prompt_tokens": result.num_prompt_tokens,
        "completion_tokens": result.num_output_tokens,
        "total_tokens": result.num_prompt_tokens + result.num_output_tokens,
        "prompt_tokens_details": {"cached_tokens": result.num_cached_tokens},
    }


def to_model(checkpoint: Checkpoint) -> ModelAnswer:
    """Return the served model as /v1/models shows it."""
    return ModelAnswer(
        id=checkpoint.name,
        object="model",
        created=checkpoint.created,
        owned_by=MODEL_OWNER,
        max_model_len=checkpoint.max_model_len,
    )


def _to_chat_choice(checkpoint: Checkpoint, index: int, choice: ChoiceResult) -> dict[str, Any]:
    logprobs = None if choice.logprobs is None else to_chat_logprobs(checkpoint, choice.logprobs)
    return {
        "index": index,
        "message": {"role": "assistant", "content": choice.text, "refusal": None},
        "logprobs": logprobs,
        "finish_reason": choice.finish_reason,
    }


def _to_completion_choice(checkpoint: Checkpoint, index: int, choice: ChoiceResult) -> dict[str, Any]:
    logprobs = None if choice.logprobs is None else to_completion_logprobs(checkpoint, choice.logprobs)
    return {
        "index": index,
        "text": choice.text,
        "logprobs": logprobs,
        "finish_reason": choice.finish_reason,
    }


def to_chat_logprobs(checkpoint: Checkpoint, logprobs: Logprobs) -> dict[str, Any]:
    """Return the logprobs of a chat choice, or of a part of it."""
    return {"content": to_token_logprobs(checkpoint, logprobs), "refusal": None}


def to_token_logprobs(checkpoint: Checkpoint, logprobs: Logprobs) -> list[dict[str, Any]]:
    """Return each token with its logprob and the likeliest ones at its place."""
    return [
        _to_token(checkpoint, token.token_id, token.logprob)
        | {"top_logprobs": [_to_token(checkpoint, other, logprob) for other, logprob in token.top]}
        for token in logprobs
    ]


def to_completion_logprobs(checkpoint: Checkpoint, logprobs: Logprobs, *, offset: int = 0) -> dict[str, Any]:
    """Return the logprobs of a completion's choice; `offset` is where its text begins."""
    texts = [checkpoint.token_text(token.token_id) for token in logprobs]
    return {
        "tokens": texts,
        "token_logprobs": [token.logprob for token in logprobs],
        "top_logprobs": [
            {checkpoint.token_text(other): logprob for other, logprob in token.top} for token in logprobs
        ],
        "text_offset": _offsets(texts, offset),
    }


def _offsets(texts: Sequence[str], offset: int) -> list[int]:
    offsets = []
    for text in texts:
        offsets.append(offset)
        offset += len(text)
    return offsets


def _to_token(checkpoint: Checkpoint, token_id: int, logprob: float) -> dict[str, Any]:
    spelled = checkpoint.token_bytes(token_id)
    return {"token": spelled.decode(errors="replace"), "logprob": logprob, "bytes": list(spelled)}


def _to_vector(vector: bytes, payload: Payload) -> list[float] | str:
    return base64.b64encode(vector).decode() if payload.is_base64 else to_floats(vector)
