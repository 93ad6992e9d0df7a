"""Streams a completion as the server-sent events that OpenAI's clients read."""

import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

from api.errors import ApiError
from api.generate.events import DONE, error_event, event
from api.generate.outputs import failure
from api.generate.waiting import GrowingOutputs, InteractiveWork
from api.inputs.checkpoint import Checkpoint
from api.openai.bodies import Endpoint, StreamOptions
from api.openai.responses import (
    call_seed,
    response_id,
    to_chat_logprobs,
    to_completion_logprobs,
    to_usage,
    to_usage_so_far,
)
from api.parsing.messages import GrowingMessage, finish_reason
from worker.values.delta import Delta
from worker.values.logprobs import Logprobs
from worker.values.parsing import Parsing


async def chunks(
    work: InteractiveWork,
    checkpoint: Checkpoint,
    endpoint: Endpoint,
    options: StreamOptions,
    *,
    wait_seconds: float,
    num_prompt_tokens: int,
    parsing: Parsing | None = None,
) -> AsyncIterator[str]:
    """Yield the events of a completion until [DONE]; errors on the way are events too."""
    chunk = _ChunkWriter(work, checkpoint, endpoint, options, num_prompt_tokens, parsing)
    outputs = GrowingOutputs()
    try:
        async for delta in work.told(wait_seconds):
            if outputs.take(delta) and (written := chunk.write(delta, outputs.num_tokens)):
                yield written
        (result,) = await work.results(wait_seconds)
        if (failed := failure(result)) is not None:
            raise failed
        for delta in outputs.rest(result):
            outputs.num_tokens = result.num_output_tokens
            yield chunk.write(delta, outputs.num_tokens)
    except ApiError as error:
        yield error_event(error)
        return
    if options.include_usage:
        yield event(chunk.base | {"choices": [], "usage": to_usage(result)})
    yield DONE


class _ChunkWriter:
    """Writes the parts of a completion's choices as events."""

    def __init__(
        self,
        work: InteractiveWork,
        checkpoint: Checkpoint,
        endpoint: Endpoint,
        options: StreamOptions,
        num_prompt_tokens: int,
        parsing: Parsing | None,
    ) -> None:
        self.base = _frame(work, checkpoint, endpoint, options)
        self._checkpoint = checkpoint
        self._has_usage = options.continuous_usage_stats
        self._num_prompt_tokens = num_prompt_tokens
        self._chat = None
        if endpoint is Endpoint.CHAT_COMPLETIONS:
            self._chat = _GrowingChat(checkpoint, parsing, own_id=self.base["id"])

    def write(self, delta: Delta, num_tokens: int) -> str:
        """Return the events of a part of a choice; none while the meaning of its text is not certain."""
        if self._has_usage:
            self.base["usage"] = to_usage_so_far(self._num_prompt_tokens, num_tokens)
        if self._chat is None:
            return event(self.base | {"choices": [_completion_choice(self._checkpoint, delta)]})
        return "".join(event(self.base | {"choices": [choice]}) for choice in self._chat.feed(delta))


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


class _GrowingChat:
    """The choices of a chat completion, each told in chunks."""

    def __init__(self, checkpoint: Checkpoint, parsing: Parsing | None, *, own_id: str) -> None:
        self._checkpoint = checkpoint
        self._parsing = parsing
        self._own_id = own_id
        self._messages: dict[int, GrowingMessage] = {}
        self._waiting: dict[int, Logprobs] = {}  # of tokens whose text is not certain yet

    def feed(self, delta: Delta) -> Iterator[dict[str, Any]]:
        """Yield the choices of the chunks that a part of an output makes."""
        index = delta.index
        message = self._messages.setdefault(
            index, GrowingMessage(self._parsing, seed=call_seed(self._own_id, index))
        )
        logprobs = self._waiting.pop(index, ()) + (delta.logprobs or ())
        is_end = delta.finish_reason is not None
        found = message.feed(delta.text, is_end=is_end)
        if not found:
            self._waiting[index] = logprobs
        for i, written in enumerate(found):
            is_last = is_end and i == len(found) - 1
            reason = delta.finish_reason if is_last else None
            yield {
                "index": index,
                "delta": written,
                "logprobs": to_chat_logprobs(self._checkpoint, logprobs)
                if i == 0 and delta.logprobs is not None
                else None,
                "finish_reason": finish_reason(reason, self._parsing, has_calls=message.has_calls),
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
