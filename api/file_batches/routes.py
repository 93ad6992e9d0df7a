"""Serves /v1/batches to unmodified OpenAI clients: make a batch from a file, look, list, cancel."""

from typing import Annotated

from fastapi import APIRouter, Header, Query
from starlette.concurrency import run_in_threadpool

from api.dependencies import (
    CONTROL_BATCH,
    READ,
    READ_BATCH,
    SUBMIT,
    BatchDependency,
    BatchId,
    IdempotencyDependency,
    ServicesDependency,
)
from api.errors import OPENAI_STATUSES, documented
from api.file_batches import service
from api.file_batches.schemas import FileBatch, FileBatchList, FileBatchSubmission
from api.inputs.cursors import After
from api.inputs.labels import SEARCH, LabelsDependency

router = APIRouter(prefix="/v1/batches", tags=["batches"], dependencies=[OPENAI_STATUSES])


@router.post(
    "",
    dependencies=[SUBMIT],
    responses=documented(400, 401, 403, 404, 413, 422, 429, 503),
    summary="Make a batch from a file",
)
def create_batch(
    submission: FileBatchSubmission,
    services: ServicesDependency,
    key: IdempotencyDependency,
    retry_count: Annotated[
        int,
        Header(alias="x-stainless-retry-count", ge=0, description="their clients count retries."),
    ] = 0,
) -> FileBatch:
    """Store a batch durably and answer at once; its lines are read later. A retry makes no second batch."""
    return service.create(services, submission, key, is_retry=retry_count > 0)


@router.get(
    "",
    dependencies=[READ],
    responses=documented(401, 403, 404, 422, 429, 503),
    openapi_extra=SEARCH,
    summary="List batches made from files",
)
def list_batches(
    services: ServicesDependency,
    labels: LabelsDependency,
    after: After = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
) -> FileBatchList:
    """Return batches, the newest first."""
    data, has_more = service.page(services, after=after, limit=limit, labels=labels)
    return FileBatchList(
        data=data,
        first_id=data[0].id if data else None,
        last_id=data[-1].id if data else None,
        has_more=has_more,
    )


@router.get(
    "/{batch_id}",
    dependencies=[READ_BATCH],
    responses=documented(401, 403, 404, 422, 429, 503),
    summary="Look at a batch made from a file",
)
async def get_batch(batch_id: BatchId, services: BatchDependency) -> FileBatch:
    """Return a batch's state now. Results can be read at /v1/batch/{batch_id}/results before it ends."""
    return await run_in_threadpool(service.get, services, batch_id)


@router.post(
    "/{batch_id}/cancel",
    dependencies=[CONTROL_BATCH],
    responses=documented(401, 403, 404, 422, 429, 503),
    summary="Cancel a batch made from a file",
)
def cancel_batch(batch_id: BatchId, services: BatchDependency) -> FileBatch:
    """Cancel a batch: finished results go into its files. An ended batch stays as it is."""
    return service.cancel(services, batch_id)
