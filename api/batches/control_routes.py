"""/v1/batch/{id}: pause, resume, reassign, retry, delete, and cancel one request."""

from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Path, Query

from api.batches import control, reassigning, service
from api.batches.routes import BatchId
from api.batches.schemas import BatchAccepted, BatchAnswer, Reassignment
from api.dependencies import SUBMIT, CallerDependency, IdempotencyDependency, ServicesDependency
from api.errors import documented

router = APIRouter(prefix="/v1/batch", tags=["batches"])


@router.post(
    "/{batch_id}/pause",
    dependencies=[SUBMIT],
    responses=documented(401, 403, 404, 409, 422, 429, 503),
    summary="Pause a batch",
)
def pause_batch(batch_id: BatchId, services: ServicesDependency) -> BatchAnswer:
    """Have a batch wait. What runs stops within a step and later goes on from there."""
    control.pause(services, batch_id)
    return service.answer(services, batch_id, include_outputs=False)


@router.post(
    "/{batch_id}/resume",
    dependencies=[SUBMIT],
    responses=documented(401, 403, 404, 409, 422, 429, 503),
    summary="Resume a batch",
)
def resume_batch(batch_id: BatchId, services: ServicesDependency) -> BatchAnswer:
    """Let a paused batch go on. One that is not paused is left alone."""
    control.resume(services, batch_id)
    return service.answer(services, batch_id, include_outputs=False)


@router.post(
    "/{batch_id}/reassign",
    dependencies=[SUBMIT],
    responses=documented(401, 403, 404, 409, 422, 429, 503),
    summary="Have another model run a batch",
)
def reassign_batch(
    batch_id: BatchId, wanted: Reassignment, services: ServicesDependency, caller: CallerDependency
) -> BatchAnswer:
    """Give what has no result yet to another model. Results stay; what was begun is begun again."""
    actor = "nobody in particular" if caller.key is None else f"key:{caller.key}"
    reassigning.reassign(services, batch_id, wanted.model, actor=actor)
    return service.answer(services, batch_id, include_outputs=False)


@router.post(
    "/{batch_id}/retry",
    dependencies=[SUBMIT],
    status_code=HTTPStatus.ACCEPTED,
    responses=documented(401, 403, 404, 409, 422, 429, 503),
    summary="Run the failed requests again",
)
def retry_batch(
    batch_id: BatchId,
    services: ServicesDependency,
    key: IdempotencyDependency,
    cancelled: Annotated[
        bool, Query(description="Also those that were cancelled, or expired, before they were done.")
    ] = False,
) -> BatchAccepted:
    """Make a new batch of what an ended one has failed, linked by `retry_of`; the old one stays as it is."""
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
    dependencies=[SUBMIT],
    responses=documented(401, 403, 404, 422, 429, 503),
    summary="Cancel one request of a batch",
)
def cancel_request(
    batch_id: BatchId,
    index: Annotated[int, Path(ge=0, lt=2**63, description="Its position in the submission, from 0.")],
    services: ServicesDependency,
) -> BatchAnswer:
    """End one request, with what it has generated. One that has its result is left alone."""
    control.cancel_request(services, batch_id, index)
    return service.answer(services, batch_id, include_outputs=False)


@router.delete(
    "/{batch_id}",
    dependencies=[SUBMIT],
    status_code=HTTPStatus.NO_CONTENT,
    responses=documented(401, 403, 404, 409, 422, 429, 503),
    summary="Delete a batch that has ended",
)
def delete_batch(batch_id: BatchId, services: ServicesDependency) -> None:
    """Delete a batch with its results. A callback that was not delivered yet is not delivered any more."""
    control.remove(services, batch_id)
