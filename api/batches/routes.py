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
from api.batches.following import LOOK_SECONDS, columns_of, result_lines, result_table
from api.batches.result_schemas import ResultPage
from api.batches.schemas import BatchAccepted, BatchAnswer, BatchPage, BatchStats, BatchSubmission
from api.batches.service import Reading
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
from api.errors import ClientGoneError, InvalidInputError, documented
from api.guards.large_bodies import OnceRoute
from api.inputs.cursors import After
from api.inputs.labels import SEARCH, LabelsDependency
from api.tables import CSV, PARQUET, has_parquet, open_table
from worker.contract.states import BatchStatus

JSON_LINES = "application/x-ndjson"
ACCEPTED = {"jsonl": JSON_LINES, "csv": CSV, "parquet": PARQUET}
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
        batch_id=view.id,
        status=view.status,
        requests=view.num_requests,
        created_at=view.created_at,
        experiment_id=view.experiment_id,
    )


@router.get(
    "",
    dependencies=[READ_BATCH],
    responses=documented(401, 403, 404, 422, 429, 503),
    openapi_extra=SEARCH,
    summary="List batches",
)
def list_batches(
    services: ListedDependency,
    labels: LabelsDependency,
    after: After = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    status: Annotated[BatchStatus | None, Query(description="Only those.")] = None,
) -> BatchPage:
    """Return batches of one tenant or all, the newest first, without outputs."""
    return service.batch_page(services, after=after, limit=limit, status=status, labels=labels)


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
        HTTPStatus.OK: {
            "content": {
                JSON_LINES: {"schema": {"type": "string"}},
                CSV: {"schema": {"type": "string"}},
                PARQUET: {"schema": {"type": "string", "format": "binary"}},
            }
        },
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
        int, Query(ge=1, le=1000, description="Results a page; JSON lines and tables have no pages.")
    ] = 100,
    order: Annotated[
        Literal["completion", "input"],
        Query(description="`input`: as submitted, up to the first request without a result yet."),
    ] = "completion",
    include: Annotated[
        Literal["request"] | None, Query(description="`request`: each result with its prompt.")
    ] = None,
    form: Annotated[
        Literal["json", "jsonl", "csv", "parquet"] | None,
        Query(alias="format", description="`json` has pages; all others hold every result after `after`."),
    ] = None,
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
    """Return results: a page of JSON, or JSON lines, CSV or Parquet if `format` or `Accept` asks for them.

    If JSON lines end early, the last one is an object with only `error`. A table that ends early ends with
    its connection.
    """
    reading = Reading(after, in_input_order=order == "input", with_requests=include == "request")
    wanted = _format(form, http_request.headers.get("accept", ""), follow=follow)
    if wait and not follow:
        await _wait_for_news(http_request, services, batch_id, reading, wait)
    one_page = wanted == "json"
    found = await run_in_threadpool(service.page, services, batch_id, reading, limit=limit if one_page else 1)
    if one_page:
        return found
    if wanted == "jsonl":
        lines = result_lines(services, batch_id, reading, follow=follow)
        return StreamingResponse(lines, media_type=JSON_LINES)
    table = await run_in_threadpool(open_table, wanted, columns_of(reading))
    headers = {"content-disposition": f'attachment; filename="{batch_id}.{wanted}"'}
    pieces = result_table(services, batch_id, reading, table, follow=follow)
    return StreamingResponse(pieces, media_type=table.media_type, headers=headers)


def _format(form: str | None, accept: str, *, follow: bool) -> str:
    """Return the format of results that a client asks for."""
    for name, media_type in ACCEPTED.items():
        if form is None and media_type in accept:
            form = name
    form = form or ("jsonl" if follow else "json")
    if form == "json" and follow:
        raise InvalidInputError("format: pages of JSON do not follow a batch; leave it out", param="format")
    if form == "parquet" and not has_parquet():
        message = "format: this server cannot write Parquet; its operator can install headrace[parquet]"
        raise InvalidInputError(message, param="format")
    return form


async def _wait_for_news(
    http_request: HttpRequest, services: Services, batch_id: str, reading: Reading, seconds: float
) -> None:
    deadline, pause = time.monotonic() + seconds, LOOK_SECONDS
    while not await run_in_threadpool(service.has_news, services, batch_id, reading):
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
