"""Serves /v1/batch/{id}: pause, resume, reassign, retry, delete, and cancel one request."""

from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Path, Query

from api.batches import control, reassigning, service
from api.batches.reassigning import Reassignment
from api.batches.schemas import BatchAccepted, BatchAnswer
from api.dependencies import (
    CONTROL_BATCH,
    BatchDependency,
    BatchId,
    CallerDependency,
    IdempotencyDependency,
)
from api.errors import documented

router = APIRouter(prefix="/v1/batch", tags=["batches"])


@router.post(
    "/{batch_id}/pause",
    dependencies=[CONTROL_BATCH],
    responses=documented(401, 403, 404, 409, 422, 429, 503),
    summary="Pause a batch",
)
def pause_batch(batch_id: BatchId, services: BatchDependency) -> BatchAnswer:
    """Pause a batch. Running requests stop within a step, and continue from there once it is resumed."""
    control.pause(services, batch_id)
    return service.answer(services, batch_id, include_outputs=False)


@router.post(
    "/{batch_id}/resume",
    dependencies=[CONTROL_BATCH],
    responses=documented(401, 403, 404, 409, 422, 429, 503),
    summary="Resume a batch",
)
def resume_batch(batch_id: BatchId, services: BatchDependency) -> BatchAnswer:
    """Resume a paused batch. A batch that is not paused stays as it is."""
    control.resume(services, batch_id)
    return service.answer(services, batch_id, include_outputs=False)


@router.post(
    "/{batch_id}/reassign",
    dependencies=[CONTROL_BATCH],
    responses=documented(401, 403, 404, 409, 422, 429, 503),
    summary="Have another model run a batch",
)
def reassign_batch(
    batch_id: BatchId, wanted: Reassignment, services: BatchDependency, caller: CallerDependency
) -> BatchAnswer:
    """Have another model run the requests without a result. Results stay; begun requests start again."""
    reassigning.reassign(services, batch_id, wanted.model, actor=caller.actor)
    return service.answer(services, batch_id, include_outputs=False)


@router.post(
    "/{batch_id}/retry",
    dependencies=[CONTROL_BATCH],
    status_code=HTTPStatus.ACCEPTED,
    responses=documented(401, 403, 404, 409, 422, 429, 503),
    summary="Run the failed requests again",
)
def retry_batch(
    batch_id: BatchId,
    services: BatchDependency,
    key: IdempotencyDependency,
    cancelled: Annotated[
        bool, Query(description="Also those that were cancelled, or expired, before they were done.")
    ] = False,
) -> BatchAccepted:
    """Submit an ended batch's failed requests as a new batch, linked by `retry_of`. The old batch stays."""
    view = control.retry(services, batch_id, with_cancelled=cancelled, key=key)
    return BatchAccepted(
        batch_id=view.id,
        status=view.status,
        requests=view.num_requests,
        created_at=view.created_at,
        retry_of=view.retry_of,
    )


@router.post(
    "/{batch_id}/requests/{index}/cancel",
    dependencies=[CONTROL_BATCH],
    responses=documented(401, 403, 404, 422, 429, 503),
    summary="Cancel one request of a batch",
)
def cancel_request(
    batch_id: BatchId,
    index: Annotated[
        int, Path(ge=0, lt=2**63, description="Its position in the submission, from 0.", examples=[0])
    ],
    services: BatchDependency,
) -> BatchAnswer:
    """Cancel one request and keep what it has generated. A request that has its result stays as it is."""
    control.cancel_request(services, batch_id, index)
    return service.answer(services, batch_id, include_outputs=False)


@router.delete(
    "/{batch_id}",
    dependencies=[CONTROL_BATCH],
    status_code=HTTPStatus.NO_CONTENT,
    responses=documented(401, 403, 404, 409, 422, 429, 503),
    summary="Delete a batch that has ended",
)
def delete_batch(batch_id: BatchId, services: BatchDependency) -> None:
    """Delete a batch with its results. A callback that is not delivered yet is never sent."""
    control.remove(services, batch_id)
