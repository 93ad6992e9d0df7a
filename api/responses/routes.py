"""Serves /v1/responses to OpenAI's clients."""

import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import datetime
from http import HTTPStatus
from typing import Annotated, Any, Literal

import anyio
from fastapi import APIRouter, Path, Query
from fastapi import Request as HttpRequest
from fastapi.responses import JSONResponse, StreamingResponse
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool

from api.dependencies import READ, SUBMIT, IdempotencyDependency, Services, ServicesDependency
from api.errors import OPENAI_STATUSES, InvalidInputError, documented
from api.event_stream import DOCUMENTED
from api.generate.events import respond
from api.generate.outputs import failure
from api.generate.waiting import InteractiveWork, submitted
from api.guards.large_bodies import OnceRoute
from api.inputs.cursors import After
from api.inputs.schema import Text
from api.responses import service
from api.responses.answer_schemas import ItemList, ResponseDeleted, ResponseObject
from api.responses.answers import Asked, ended, name_of
from api.responses.bodies import ResponseBody
from api.responses.streaming import follow, live
from worker.contract.states import Lane
from worker.store.batches import responses
from worker.store.batches.batches import NewBatch
from worker.store.batches.responses import NewResponse
from worker.store.database.session import DATABASE_AWAY
from worker.values.sampling import SamplingParams

logger = logging.getLogger(__name__)

router = APIRouter(
    prefix="/v1/responses", tags=["openai"], route_class=OnceRoute, dependencies=[OPENAI_STATUSES]
)

ResponseId = Annotated[
    Text, Path(examples=["resp_0d9c6d1f7a5b4c7f8f7b6f9f4c1e2a3b"], max_length=64, min_length=1)
]
CANCEL_SECONDS, CANCEL_LOOK_SECONDS = 0.5, 0.05


def _answers(*statuses: int) -> dict[int | str, dict[str, Any]]:
    whole = {"model": ResponseObject, "content": DOCUMENTED}
    return {HTTPStatus.OK: whole, **documented(*statuses)}


@router.post(
    "",
    dependencies=[SUBMIT],
    responses=_answers(400, 401, 403, 404, 413, 429, 500, 503, 504),
    response_model=None,
    summary="Make a response",
)
async def create_response(
    body: ResponseBody,
    http_request: HttpRequest,
    services: ServicesDependency,
    key: IdempotencyDependency,
) -> JSONResponse | StreamingResponse:
    """Answer an input, whole, as a stream of server-sent events, or later with `background`.

    An `Idempotency-Key` counts for background responses.
    """
    if body.is_background:
        batch_id = await run_in_threadpool(service.submit, services, body, key)
        response_id = f"resp_{name_of(batch_id)}"
        if body.stream:
            return await respond(follow(services, http_request, response_id))
        return JSONResponse(await run_in_threadpool(service.get, services, response_id))
    batch, new = await run_in_threadpool(service.prepare, services, body)
    if body.stream:
        return await respond(_stream(services, http_request, batch, new, is_flex=body.is_flex))
    async with _submitted(services, http_request, batch, new, is_flex=body.is_flex) as (work, asked):
        (result,) = await work.results(services.settings.wait_seconds)
    if (error := failure(result)) is not None:
        raise error
    return JSONResponse(ended(services.checkpoint, asked, result))


@router.get(
    "/{response_id}",
    dependencies=[READ],
    responses=_answers(400, 401, 403, 404, 429, 503),
    response_model=None,
    summary="Look at a response",
)
async def get_response(
    response_id: ResponseId,
    http_request: HttpRequest,
    services: ServicesDependency,
    stream: Annotated[
        bool, Query(description="Of a background response: its events, as soon as it has ended.")
    ] = False,
    starting_after: Annotated[
        int | None, Query(ge=0, lt=2**31, description="Only the events after this number.")
    ] = None,
) -> JSONResponse | StreamingResponse:
    """Return a stored response as it stands now."""
    found = await run_in_threadpool(service.get, services, response_id)
    if not stream:
        return JSONResponse(found)
    if not found["background"]:
        problem = "is possible only for a response that was made with `background`"
        raise InvalidInputError(f"stream: {problem}", param="stream")
    after = -1 if starting_after is None else starting_after
    return await respond(follow(services, http_request, response_id, after=after))


@router.delete(
    "/{response_id}",
    dependencies=[SUBMIT],
    responses=documented(400, 401, 403, 404, 429, 503),
    summary="Delete a response",
)
def delete_response(response_id: ResponseId, services: ServicesDependency) -> ResponseDeleted:
    """Delete a response with its input and output. One that runs is cancelled first."""
    service.remove(services, response_id)
    return ResponseDeleted(id=response_id)


@router.post(
    "/{response_id}/cancel",
    dependencies=[SUBMIT],
    responses=documented(400, 401, 403, 404, 429, 503),
    response_model=ResponseObject,
    summary="Cancel a background response",
)
async def cancel_response(response_id: ResponseId, services: ServicesDependency) -> JSONResponse:
    """Cancel a background response; one that has ended stays as it is.

    The status is still `in_progress` if the worker does not stop within half a second.
    """
    await run_in_threadpool(service.cancel, services, response_id)
    waited = 0.0
    while True:
        found = await run_in_threadpool(service.get, services, response_id)
        if found["status"] not in {"queued", "in_progress"} or waited >= CANCEL_SECONDS:
            return JSONResponse(found)
        await anyio.sleep(CANCEL_LOOK_SECONDS)
        waited += CANCEL_LOOK_SECONDS


@router.get(
    "/{response_id}/input_items",
    dependencies=[READ],
    responses=documented(400, 401, 403, 404, 429, 503),
    response_model=ItemList,
    summary="List the input of a response",
)
def list_input_items(
    response_id: ResponseId,
    services: ServicesDependency,
    after: After = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    order: Annotated[Literal["asc", "desc"], Query(description="`desc`: the last item first.")] = "desc",
) -> JSONResponse:
    """Return the items that a response was made from, with those of the responses that it continues."""
    data, has_more = service.page_of_items(services, response_id, after=after, limit=limit, order=order)
    ends = {"first_id": data[0]["id"] if data else None, "last_id": data[-1]["id"] if data else None}
    return JSONResponse({"object": "list", "data": data, **ends, "has_more": has_more})


@asynccontextmanager
async def _submitted(
    services: Services, http_request: HttpRequest, batch: NewBatch, new: NewResponse, *, is_flex: bool
) -> AsyncGenerator[tuple[InteractiveWork, Asked], None]:
    """Submit a response that its client waits for; on exit, delete it if it is not stored."""
    accepted_at: list[datetime] = []

    def beside(session: Session) -> None:
        accepted_at.append(responses.add(session, new))

    lane = Lane.BATCH if is_flex else Lane.INTERACTIVE
    try:
        async with submitted(services, http_request, batch, lane=lane, beside=beside) as work:
            yield work, Asked(name_of(new.batch_id), new.request, accepted_at[0])
    finally:
        if not new.is_stored:
            with anyio.CancelScope(shield=True):
                await run_in_threadpool(_forget, services, new.batch_id)


def _forget(services: Services, batch_id: str) -> None:
    try:
        with services.store.transaction() as session:
            service.forget(session, batch_id)
    except DATABASE_AWAY as error:  # the dispatcher's sweep deletes it
        logger.warning("%s is not deleted yet: %s", batch_id, str(error).splitlines()[0])


async def _stream(
    services: Services, http_request: HttpRequest, batch: NewBatch, new: NewResponse, *, is_flex: bool
) -> AsyncGenerator[str, None]:
    async with _submitted(services, http_request, batch, new, is_flex=is_flex) as (work, asked):
        wait_seconds = services.settings.wait_seconds
        params = batch.requests[0].params
        parsing = params.parsing if isinstance(params, SamplingParams) else None
        found = live(work, services.checkpoint, asked, parsing=parsing, wait_seconds=wait_seconds)
        async for one in found:
            yield one
