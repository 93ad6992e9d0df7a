"""Streams a completion as the server-sent events that OpenAI's clients read."""

import time
from collections.abc import AsyncIterator
from typing import Any

from api.errors import ApiError
from api.generate.events import DONE, error_event, event
from api.generate.outputs import failure
from api.generate.waiting import GrowingOutputs, InteractiveWork
from api.inputs.checkpoint import Checkpoint
from api.openai.bodies import Endpoint, StreamOptions
from api.openai.responses import (
    response_id,
    to_chat_logprobs,
    to_completion_logprobs,
    to_usage,
    to_usage_so_far,
)
from worker.values.delta import Delta


async def chunks(
    work: InteractiveWork,
    checkpoint: Checkpoint,
    endpoint: Endpoint,
    options: StreamOptions,
    *,
    wait_seconds: float,
    num_prompt_tokens: int,
) -> AsyncIterator[str]:
    """Yield the events of a completion until [DONE]; errors on the way are events too."""
    is_chat = endpoint is Endpoint.CHAT_COMPLETIONS
    base = _frame(work, checkpoint, endpoint, options)
    begun: set[int] = set()

    def write(delta: Delta) -> str:
        if options.continuous_usage_stats:
            base["usage"] = to_usage_so_far(num_prompt_tokens, outputs.num_tokens)
        if not is_chat:
            return event(base | {"choices": [_completion_choice(checkpoint, delta)]})
        first = delta.index not in begun
        begun.add(delta.index)
        return event(base | {"choices": [_chat_choice(checkpoint, delta, first=first)]})

    outputs = GrowingOutputs()
    try:
        async for delta in work.told(wait_seconds):
            if outputs.take(delta):
                yield write(delta)
        (result,) = await work.results(wait_seconds)
        if (failed := failure(result)) is not None:
            raise failed
        for delta in outputs.rest(result):
            outputs.num_tokens = result.num_output_tokens
            yield write(delta)
    except ApiError as error:
        yield error_event(error)
        return
    if options.include_usage:
        yield event(base | {"choices": [], "usage": to_usage(result)})
    yield DONE


def _frame(
    work: InteractiveWork, checkpoint: Checkpoint, endpoint: Endpoint, options: StreamOptions
) -> dict[str, Any]:
    """Return the fields that all chunks share."""
    is_chat = endpoint is Endpoint.CHAT_COMPLETIONS
    return {
        "id": response_id(endpoint, work.batch_id, 0),
        "object": "chat.completion.chunk" if is_chat else "text_completion",
        "created": int(time.time()),
        "model": checkpoint.name,
        "system_fingerprint": None,
    } | ({"usage": None} if options.include_usage else {})


def _chat_choice(checkpoint: Checkpoint, delta: Delta, *, first: bool) -> dict[str, Any]:
    logprobs = None if delta.logprobs is None else to_chat_logprobs(checkpoint, delta.logprobs)
    return {
        "index": delta.index,
        "delta": ({"role": "assistant"} if first else {}) | {"content": delta.text},
        "logprobs": logprobs,
        "finish_reason": delta.finish_reason,
    }


def _completion_choice(checkpoint: Checkpoint, delta: Delta) -> dict[str, Any]:
    logprobs = None
    if delta.logprobs is not None:
        logprobs = to_completion_logprobs(checkpoint, delta.logprobs, offset=delta.offset)
    return {
        "index": delta.index,
        "text": delta.text,
        "logprobs": logprobs,
        "finish_reason": delta.finish_reason,
    }
