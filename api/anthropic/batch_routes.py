"""Serves /v1/messages/batches to unmodified clients of Anthropic's."""

from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Header, Query
from fastapi.responses import StreamingResponse
from starlette.concurrency import run_in_threadpool

from api.anthropic import batch_service
from api.anthropic.answer_schemas import DeletedMessageBatch, MessageBatch, MessageBatchList
from api.anthropic.bodies import NewMessageBatch
from api.anthropic_errors import OWN_PATH, AnthropicErrorBody
from api.dependencies import (
    CONTROL_BATCH,
    READ,
    READ_BATCH,
    SUBMIT,
    BatchDependency,
    BatchId,
    BodyDigestDependency,
    IdempotencyDependency,
    ServicesDependency,
)
from api.errors import OPENAI_STATUSES, documented
from api.guards.large_bodies import OnceRoute
from api.inputs.schema import Text

JSON_LINES = "application/x-jsonl"
ERRORS = documented(400, 401, 403, 404, 429, 503, body=AnthropicErrorBody)
Cursor = Annotated[Text | None, Query(max_length=64)]

router = APIRouter(
    prefix=f"{OWN_PATH}/batches", tags=["anthropic"], route_class=OnceRoute, dependencies=[OPENAI_STATUSES]
)


@router.post(
    "",
    dependencies=[SUBMIT],
    responses=documented(400, 401, 403, 404, 413, 429, 503, body=AnthropicErrorBody),
    summary="Submit a batch of messages",
)
def create_message_batch(
    submission: NewMessageBatch,
    services: ServicesDependency,
    key: IdempotencyDependency,
    digest: BodyDigestDependency,
    retry_count: Annotated[
        int, Header(alias="x-stainless-retry-count", ge=0, description="their clients count retries.")
    ] = 0,
) -> MessageBatch:
    """Store a batch durably and answer at once. A retry makes no second batch."""
    return batch_service.create(services, submission, key, digest=digest, is_retry=retry_count > 0)


@router.get("", dependencies=[READ], responses=ERRORS, summary="List batches of messages")
def list_message_batches(
    services: ServicesDependency,
    before_id: Cursor = None,
    after_id: Cursor = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 20,
) -> MessageBatchList:
    """Return batches, the newest first: those after `after_id`, or just before `before_id`."""
    return batch_service.page(services, after=after_id, before=before_id, limit=limit)


@router.get("/{batch_id}", dependencies=[READ_BATCH], responses=ERRORS, summary="Look at a batch of messages")
def get_message_batch(batch_id: BatchId, services: BatchDependency) -> MessageBatch:
    """Return a batch's state now."""
    return batch_service.get(services, batch_id)


@router.post(
    "/{batch_id}/cancel", dependencies=[CONTROL_BATCH], responses=ERRORS, summary="Cancel a batch of messages"
)
def cancel_message_batch(batch_id: BatchId, services: BatchDependency) -> MessageBatch:
    """Cancel a batch: results stay, the other requests are canceled. An ended batch stays as it is."""
    return batch_service.cancel(services, batch_id)


@router.delete(
    "/{batch_id}",
    dependencies=[CONTROL_BATCH],
    responses=documented(400, 401, 403, 404, 409, 429, 503, body=AnthropicErrorBody),
    summary="Delete a batch of messages",
)
def delete_message_batch(batch_id: BatchId, services: BatchDependency) -> DeletedMessageBatch:
    """Delete a batch that has ended, with its results."""
    batch_service.remove(services, batch_id)
    return DeletedMessageBatch(id=batch_id)


@router.get(
    "/{batch_id}/results",
    dependencies=[READ_BATCH],
    responses={
        HTTPStatus.OK: {"content": {JSON_LINES: {"schema": {"type": "string"}}}},
        **documented(400, 401, 403, 404, 409, 429, 503, body=AnthropicErrorBody),
    },
    response_class=StreamingResponse,
    summary="Read the results of a batch of messages",
)
async def get_message_batch_results(batch_id: BatchId, services: BatchDependency) -> StreamingResponse:
    """Return the results of a batch that has ended as JSON lines, in order of completion."""
    await run_in_threadpool(batch_service.check_results, services, batch_id)
    return StreamingResponse(batch_service.result_lines(services, batch_id), media_type=JSON_LINES)
