"""Serves GET /v1/batch/{id}/events: progress as server-sent events, until the batch has ended."""

import asyncio
import time
from collections.abc import AsyncIterator

from fastapi import APIRouter
from fastapi.responses import StreamingResponse
from starlette.concurrency import run_in_threadpool

from api.batches import service
from api.batches.schemas import BatchAnswer
from api.dependencies import READ_BATCH, BatchDependency, BatchId, Services
from api.errors import ON_THE_WAY, ErrorBody, documented, on_the_way
from api.event_stream import DOCUMENTED, MEDIA_TYPE
from api.json_lines import one_line

LOOK_SECONDS = 0.5
SILENT_SECONDS = 15.0  # then a comment is sent, so that no proxy takes the connection for dead

router = APIRouter(prefix="/v1/batch", tags=["batches"])


@router.get(
    "/{batch_id}/events",
    dependencies=[READ_BATCH],
    response_class=StreamingResponse,
    responses={
        200: {"content": DOCUMENTED},
        **documented(401, 403, 404, 422, 429, 503),
    },
    summary="Follow a batch's progress",
)
async def batch_events(batch_id: BatchId, services: BatchDependency) -> StreamingResponse:
    """Stream the state of a batch, without outputs, each time it changes.

    Events are named `progress`, and the last one after the terminal status. The data of each is the answer
    of `GET /v1/batch/{id}`. If the stream ends early, the last event is named `error` and its data says why.
    """
    first = await _look(services, batch_id)
    return StreamingResponse(
        _events(services, batch_id, first),
        media_type=MEDIA_TYPE,
        headers={"cache-control": "no-cache", "x-accel-buffering": "no"},
    )


async def _look(services: Services, batch_id: str) -> BatchAnswer:
    return await run_in_threadpool(service.answer, services, batch_id, include_outputs=False)


async def _events(services: Services, batch_id: str, batch: BatchAnswer) -> AsyncIterator[str]:
    said, said_at = "", time.monotonic()
    while True:
        # The estimates change with the clock alone, so they cause no event.
        news = batch.model_dump_json(exclude={"eta_seconds", "eta_range"})
        if news != said:
            name = batch.status if batch.status.is_terminal else "progress"
            yield f"event: {name}\ndata: {one_line(batch.model_dump_json())}\n\n"
            said, said_at = news, time.monotonic()
        elif time.monotonic() - said_at > SILENT_SECONDS:
            yield ": still here\n\n"
            said_at = time.monotonic()
        if batch.status.is_terminal:
            return
        await asyncio.sleep(LOOK_SECONDS)
        try:
            batch = await _look(services, batch_id)
        except ON_THE_WAY as error:  # it was deleted, or Postgres is away
            body = ErrorBody(error=on_the_way(error).detail)
            yield f"event: error\ndata: {one_line(body.model_dump_json(exclude_none=True))}\n\n"
            return
