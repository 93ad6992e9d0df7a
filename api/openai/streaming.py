"""Streams a completion as the server-sent events that OpenAI's clients read."""

import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

from api.errors import ApiError
from api.generate.events import DONE, error_event, event
from api.generate.outputs import failure
from api.generate.waiting import GrowingOutputs, InteractiveWork
from api.inputs.checkpoint import Checkpoint
from api.openai.answers import answer_id, to_answer, to_usage, to_usage_so_far
from api.openai.bodies import Endpoint, StreamOptions
from api.openai.growing import GrowingChat, GrowingCompletion, asked_of
from worker.store.requests.requests import NewRequest
from worker.store.requests.result_views import ResultView
from worker.values.delta import Delta


async def chunks(
    work: InteractiveWork,
    checkpoint: Checkpoint,
    endpoint: Endpoint,
    options: StreamOptions,
    *,
    wait_seconds: float,
    request: NewRequest,
) -> AsyncIterator[str]:
    """Yield the events of a completion until [DONE]; errors on the way are events too."""
    chunk = _ChunkWriter(work, checkpoint, endpoint, options, request)
    try:
        async for delta in work.told(wait_seconds):
            if written := chunk.take(delta):
                yield written
        (result,) = await work.results(wait_seconds)
        if (failed := failure(result)) is not None:
            raise failed
        for written in chunk.rest(result):
            yield written
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
        request: NewRequest,
    ) -> None:
        self.base = _frame(work, checkpoint, endpoint, options)
        self._work = work
        self._checkpoint = checkpoint
        self._endpoint = endpoint
        self._has_usage = options.continuous_usage_stats
        self._num_prompt_tokens = request.num_prompt_tokens
        self._outputs = GrowingOutputs()
        asked = asked_of(request)
        # The logprobs of a prompt are in no Delta, so the choices that repeat them are written whole.
        self._needs_result = asked.echo and asked.logprobs is not None
        self._growing: GrowingChat | GrowingCompletion = (
            GrowingChat(checkpoint, request, own_id=self.base["id"])
            if endpoint is Endpoint.CHAT_COMPLETIONS
            else GrowingCompletion(checkpoint, request)
        )

    def take(self, delta: Delta) -> str:
        """Return the events of a part of a choice; none while the meaning of its text is not certain."""
        return "" if self._needs_result or not self._outputs.take(delta) else self._write(delta)

    def rest(self, result: ResultView) -> Iterator[str]:
        """Yield the events that are left when the result is there."""
        self._outputs.num_tokens = result.num_output_tokens
        if self._needs_result:
            whole = to_answer(self._checkpoint, self._endpoint, result, batch_id=self._work.batch_id)
            for choice in whole["choices"]:
                yield self._event({"choices": [choice]})
            return
        for delta in self._outputs.rest(result):
            yield self._write(delta)

    def _write(self, delta: Delta) -> str:
        return "".join(map(self._event, self._growing.feed(delta)))

    def _event(self, fields: dict[str, Any]) -> str:
        if self._has_usage:
            self.base["usage"] = to_usage_so_far(self._num_prompt_tokens, self._outputs.num_tokens)
        return event(self.base | fields)


def _frame(
    work: InteractiveWork, checkpoint: Checkpoint, endpoint: Endpoint, options: StreamOptions
) -> dict[str, Any]:
    """Return the fields that all chunks share."""
    is_chat = endpoint is Endpoint.CHAT_COMPLETIONS
    return {
        "id": answer_id(endpoint, work.batch_id, 0),
        "object": "chat.completion.chunk" if is_chat else "text_completion",
        "created": int(time.time()),
        "model": checkpoint.name,
        "system_fingerprint": None,
    } | ({"usage": None} if options.include_usage else {})
