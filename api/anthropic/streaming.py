"""Streams a message as the server-sent events that Anthropic's clients read."""

from collections.abc import AsyncIterator
from typing import Any

from api.anthropic.answers import message_id, to_end, to_usage, usage_of
from api.anthropic.blocks import GrowingBlocks
from api.anthropic_errors import anthropic_error
from api.errors import ApiError
from api.generate.events import event
from api.generate.outputs import choices_of, failure
from api.generate.waiting import GrowingOutputs, InteractiveWork
from api.inputs.checkpoint import Checkpoint
from worker.values.parsing import Parsing


async def message_events(
    work: InteractiveWork,
    checkpoint: Checkpoint,
    *,
    wait_seconds: float,
    num_prompt_tokens: int,
    parsing: Parsing | None,
    request_id: str | None,
) -> AsyncIterator[str]:
    """Yield the events of a message from `message_start` to `message_stop`; an error ends them earlier."""
    yield _named(_start(work, checkpoint, num_prompt_tokens))
    yield _named({"type": "ping"})
    outputs, blocks = GrowingOutputs(), GrowingBlocks(parsing, seed=message_id(work.batch_id, 0))
    try:
        async for delta in work.told(wait_seconds):
            if outputs.take(delta):
                for one in blocks.add(delta.text):
                    yield _named(one)
        (result,) = await work.results(wait_seconds)
        if (failed := failure(result)) is not None:
            raise failed
        for delta in outputs.rest(result):
            for one in blocks.add(delta.text):
                yield _named(one)
    except ApiError as error:
        told = anthropic_error(
            int(error.status), error.message, param=error.param, code=error.code, request_id=request_id
        )
        yield _named(told)
        return
    for one in blocks.end():
        yield _named(one)
    (choice,) = choices_of(result)
    end = to_end(checkpoint, choice, result, has_calls=blocks.num_calls > 0)
    yield _named({"type": "message_delta", "delta": end, "usage": to_usage(result)})
    yield _named({"type": "message_stop"})


def _named(body: dict[str, Any]) -> str:
    return f"event: {body['type']}\n{event(body)}"


def _start(work: InteractiveWork, checkpoint: Checkpoint, num_prompt_tokens: int) -> dict[str, Any]:
    message: dict[str, Any] = {
        "id": message_id(work.batch_id, 0),
        "type": "message",
        "role": "assistant",
        "model": checkpoint.name,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        # What a cache has of the prompt is known at the end.
        "usage": usage_of(num_prompt_tokens, 0, 0),
    }
    return {"type": "message_start", "message": message}
