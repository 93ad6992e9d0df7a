"""Serves /v1/batch: submit, list, look at and cancel batches, read results."""

import asyncio
import time
from http import HTTPStatus
from typing import Annotated, Literal

from fastapi import APIRouter, Query
from fastapi import Request as HttpRequest
from fastapi.responses import StreamingResponse
from starlette.concurrency import run_in_threadpool

from api.batches import service
from api.batches.following import LOOK_SECONDS, result_lines
from api.batches.result_schemas import ResultPage
from api.batches.schemas import BatchAccepted, BatchAnswer, BatchPage, BatchStats, BatchSubmission
from api.dependencies import (
    CONTROL_BATCH,
    READ_BATCH,
    SUBMIT,
    BatchDependency,
    BatchId,
    IdempotencyDependency,
    ListedDependency,
    Services,
    ServicesDependency,
)
from api.errors import ClientGoneError, documented
from api.guards.large_bodies import OnceRoute
from api.inputs.cursors import After
from worker.contract.states import BatchStatus

JSON_LINES = "application/x-ndjson"
MAX_WAIT_SECONDS = 60
LONGEST_LOOK_SECONDS = 2.0
CANCEL_SECONDS, CANCEL_LOOK_SECONDS = 0.5, 0.05

router = APIRouter(prefix="/v1/batch", tags=["batches"], route_class=OnceRoute)


@router.post(
    "/async",
    dependencies=[SUBMIT],
    status_code=HTTPStatus.ACCEPTED,
    responses=documented(400, 401, 403, 413, 422, 429, 503),
    summary="Submit a batch",
)
def submit_batch(
    submission: BatchSubmission, services: ServicesDependency, key: IdempotencyDependency
) -> BatchAccepted:
    """Store a batch durably and answer at once. Headrace calls `callback_url` when the batch has ended."""
    view = service.submit(services, submission, key)
    return BatchAccepted(
        batch_id=view.id, status=view.status, requests=view.num_requests, created_at=view.created_at
    )


@router.get(
    "", dependencies=[READ_BATCH], responses=documented(401, 403, 404, 422, 429, 503), summary="List batches"
)
def list_batches(
    services: ListedDependency,
    after: After = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    status: Annotated[BatchStatus | None, Query(description="Only those.")] = None,
) -> BatchPage:
    """Return batches of one tenant or all, the newest first, without outputs."""
    return service.batch_page(services, after=after, limit=limit, status=status)


# Declared before /{batch_id}, which would take `stats` for an id.
@router.get(
    "/stats",
    dependencies=[READ_BATCH],
    responses=documented(401, 403, 429, 503),
    summary="Count batches by status",
)
def batch_stats(services: ListedDependency) -> BatchStats:
    """Count all batches by status."""
    return service.stats(services)


@router.get(
    "/{batch_id}",
    dependencies=[READ_BATCH],
    responses=documented(401, 403, 404, 422, 429, 503),
    summary="Look at a batch",
)
async def get_batch(
    batch_id: BatchId,
    services: BatchDependency,
    include: Annotated[
        Literal["outputs", "none"] | None,
        Query(description="`outputs` travel along with a small batch unless this is `none`."),
    ] = None,
) -> BatchAnswer:
    """Return status, counts, tokens and progress, and the outputs of a small batch."""
    wanted = None if include is None else include == "outputs"
    return await run_in_threadpool(service.answer, services, batch_id, include_outputs=wanted)


@router.get(
    "/{batch_id}/results",
    dependencies=[READ_BATCH],
    responses={
        HTTPStatus.OK: {"content": {JSON_LINES: {"schema": {"type": "string"}}}},
        **documented(401, 403, 404, 422, 429, 503),
    },
    response_model=ResultPage,
    summary="Read results, also while the batch runs",
)
async def get_results(
    http_request: HttpRequest,
    batch_id: BatchId,
    services: BatchDependency,
    after: Annotated[int, Query(ge=0, lt=2**63, description="The `next` of the page before.")] = 0,
    limit: Annotated[
        int, Query(ge=1, le=1000, description="Results a page; JSON lines have no pages.")
    ] = 100,
    follow: Annotated[bool, Query(description="Stream JSON lines until the batch has ended.")] = False,
    wait: Annotated[
        float,
        Query(
            ge=0,
            le=MAX_WAIT_SECONDS,
            allow_inf_nan=False,
            description="Seconds to wait for a result or the batch's end, if there is nothing to read.",
        ),
    ] = 0,
) -> ResultPage | StreamingResponse:
    """Return results in order of completion: a page of JSON, or JSON lines if `Accept` asks for them.

    If the lines end early, the last one is an object with only `error`.
    """
    wants_lines = follow or JSON_LINES in http_request.headers.get("accept", "")
    if wait and not follow:
        await _wait_for_news(http_request, services, batch_id, after, wait)
    found = await run_in_threadpool(
        service.page, services, batch_id, after=after, limit=1 if wants_lines else limit
    )
    if wants_lines:
        lines = result_lines(services, batch_id, after=after, follow=follow)
        return StreamingResponse(lines, media_type=JSON_LINES)
    return found


async def _wait_for_news(
    http_request: HttpRequest, services: Services, batch_id: str, after: int, seconds: float
) -> None:
    deadline, pause = time.monotonic() + seconds, LOOK_SECONDS
    while not await run_in_threadpool(service.has_news, services, batch_id, after=after):
        left = deadline - time.monotonic()
        if left <= 0:
            return
        if await http_request.is_disconnected():
            raise ClientGoneError("The client has disconnected.")
        await asyncio.sleep(min(pause, left))
        pause = min(2 * pause, LONGEST_LOOK_SECONDS)  # no news for a while: look less often


@router.post(
    "/{batch_id}/cancel",
    dependencies=[CONTROL_BATCH],
    responses=documented(401, 403, 404, 422, 429, 503),
    summary="Cancel a batch",
)
async def cancel_batch(batch_id: BatchId, services: BatchDependency) -> BatchAnswer:
    """Cancel a batch: results stay, the other requests are cancelled. An ended batch stays as it is.

    The answer is `cancelling` if the workers do not stop within half a second. If every request turns out
    to be done, the batch is `completed`.
    """
    await run_in_threadpool(service.cancel, services, batch_id)
    waited = 0.0
    while True:
        answer = await run_in_threadpool(service.answer, services, batch_id, include_outputs=False)
        if answer.status.is_terminal or waited >= CANCEL_SECONDS:
            return answer
        await asyncio.sleep(CANCEL_LOOK_SECONDS)
        waited += CANCEL_LOOK_SECONDS
