"""Streams a response as OpenAI's numbered events."""

from collections.abc import AsyncGenerator, Iterable
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import anyio
from fastapi import Request as HttpRequest
from starlette.concurrency import run_in_threadpool

from api import json_lines
from api.dependencies import Services
from api.errors import ON_THE_WAY, ApiError, ClientGoneError, on_the_way
from api.generate.waiting import LONGEST_LOOK_SECONDS, LOOK_SECONDS, GrowingOutputs, InteractiveWork
from api.inputs.checkpoint import Checkpoint
from api.openai.logprobs import to_token_logprobs
from api.responses import service
from api.responses.answers import Asked, ended, unfinished
from api.responses.output import Event, OutputWriter
from worker.values.delta import Delta
from worker.values.outcomes import Outcome
from worker.values.parsing import Parsing

LAST = {"completed": "response.completed", "incomplete": "response.incomplete"}


class Numbers:
    """Writes events, each with the next sequence number; those up to `after` were read before."""

    def __init__(self, after: int = -1) -> None:
        self._after = after
        self._next = count()

    def write(self, events: Iterable[Event]) -> list[str]:
        """Return server-sent events."""
        return [self._one(event) for event in events if self._is_new(event)]

    def _is_new(self, event: Event) -> bool:
        event["sequence_number"] = next(self._next)
        return int(event["sequence_number"]) > self._after

    @staticmethod
    def _one(event: Event) -> str:
        return f"event: {event['type']}\ndata: {json_lines.dumps(event)}\n\n"


@dataclass(frozen=True, slots=True)
class _Growing:
    """A response whose output is being written."""

    checkpoint: Checkpoint
    asked: Asked
    writer: OutputWriter

    def begin(self) -> list[Event]:
        response = unfinished(self.checkpoint, self.asked, "in_progress")
        return [{"type": f"response.{kind}", "response": response} for kind in ("created", "in_progress")]

    def add(self, delta: Delta) -> list[Event]:
        return self.writer.feed(delta.text, to_token_logprobs(self.checkpoint, delta.logprobs or ()))

    def end(self, response: dict[str, Any]) -> list[Event]:
        status = response["status"]
        has_items = response["output"] or self.writer.items
        events = self.writer.end("completed" if status == "completed" else "incomplete") if has_items else []
        return [*events, {"type": LAST.get(status, "response.failed"), "response": response}]

    def fail(self, error: ApiError) -> Event:
        said = {"code": "server_error", "message": error.message}
        response = unfinished(self.checkpoint, self.asked, "failed") | {"error": said}
        return {"type": "response.failed", "response": response}


async def live(
    work: InteractiveWork,
    checkpoint: Checkpoint,
    asked: Asked,
    *,
    parsing: Parsing | None,
    wait_seconds: float,
) -> AsyncGenerator[str, None]:
    """Yield the events of a response while it is generated; an error on the way is its last one."""
    numbers, outputs = Numbers(), GrowingOutputs()
    growing = _Growing(checkpoint, asked, OutputWriter(asked.name, parsing))
    for one in numbers.write(growing.begin()):
        yield one
    try:
        async for delta in work.told(wait_seconds):
            if outputs.take(delta):
                for one in numbers.write(growing.add(delta)):
                    yield one
        (result,) = await work.results(wait_seconds)
        for delta in outputs.rest(result) if result.outcome is Outcome.COMPLETED else ():
            for one in numbers.write(growing.add(delta)):
                yield one
    except ApiError as error:
        for one in numbers.write([growing.fail(error)]):
            yield one
        return
    for one in numbers.write(growing.end(ended(checkpoint, asked, result))):
        yield one


async def follow(
    services: Services, http_request: HttpRequest, response_id: str, *, after: int = -1
) -> AsyncGenerator[str, None]:
    """Yield the events of a background response, whose text comes in one piece when it has ended.

    So the same events have the same numbers each time, and a reader can go on after the last one it read.
    """
    numbers, pause = Numbers(after), LOOK_SECONDS
    found = await run_in_threadpool(_find, services, response_id)
    begun = _Growing(services.checkpoint, found.asked, OutputWriter(found.asked.name, None))
    for one in numbers.write(begun.begin()):
        yield one
    try:
        while not found.batch.status.is_terminal:
            if await http_request.is_disconnected():
                raise ClientGoneError("The client has disconnected.")
            await anyio.sleep(pause)
            pause = min(2 * pause, LONGEST_LOOK_SECONDS)
            found = await run_in_threadpool(_find, services, response_id)
    except ON_THE_WAY as error:
        for one in numbers.write([begun.fail(on_the_way(error))]):
            yield one
        return
    parsing = None if found.result is None else found.result.parsing
    growing = replace(begun, writer=OutputWriter(found.asked.name, parsing))
    if found.result is not None and found.result.output:
        (whole,) = GrowingOutputs().rest(found.result)
        for one in numbers.write(growing.add(whole)):
            yield one
    for one in numbers.write(growing.end(service.answer(services, found))):
        yield one


def _find(services: Services, response_id: str) -> service.Found:
    with services.store.look() as session:
        return service.find(session, response_id)
