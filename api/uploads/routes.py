"""Serves /v1/uploads, a file in parts, to unmodified OpenAI clients."""

from typing import Annotated, Any

from fastapi import APIRouter, Path
from fastapi import Request as HttpRequest
from starlette.concurrency import run_in_threadpool

from api.dependencies import SUBMIT, ServicesDependency
from api.errors import OPENAI_STATUSES, documented
from api.files.form import read_form
from api.files.intake import Spool
from api.files.schemas import (
    PartObject,
    UploadCompletion,
    UploadObject,
    UploadSubmission,
    to_part,
    to_upload,
)
from api.inputs.schema import Text
from api.uploads import service

router = APIRouter(prefix="/v1/uploads", tags=["uploads"], dependencies=[OPENAI_STATUSES])

UploadId = Annotated[Text, Path(examples=["upload_0d9c6d1f7a5b4c7f8f7b6f9f4c1e2a3b"], max_length=64)]

FORM: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["data"],
                    "properties": {"data": {"type": "string", "format": "binary"}},
                    "examples": [{"data": "@first-part"}],
                }
            }
        },
    }
}


@router.post(
    "",
    dependencies=[SUBMIT],
    responses=documented(400, 401, 403, 413, 422, 429, 503),
    summary="Begin an upload",
)
def create_upload(submission: UploadSubmission, services: ServicesDependency) -> UploadObject:
    """Begin the upload of a file in parts. It must be complete within an hour."""
    return to_upload(service.create(services, submission))


@router.post(
    "/{upload_id}/parts",
    dependencies=[SUBMIT],
    responses=documented(401, 403, 404, 409, 413, 422, 429, 503),
    openapi_extra=FORM,
    summary="Add a part",
)
async def add_part(
    upload_id: UploadId, http_request: HttpRequest, services: ServicesDependency
) -> PartObject:
    """Take in a part, of at most 64 MiB. Parts may arrive in any order, and at the same time."""
    await run_in_threadpool(service.check_open, services, upload_id)
    spool: Spool = await run_in_threadpool(service.spool, services)
    try:
        await read_form(
            http_request,
            file_field="data",
            open_sink=lambda _: spool.take,
            give_way=services.traffic.give_way,
        )
        return to_part(await run_in_threadpool(service.add_part, services, upload_id, spool))
    finally:
        await run_in_threadpool(spool.close)


@router.post(
    "/{upload_id}/complete",
    dependencies=[SUBMIT],
    responses=documented(400, 401, 403, 404, 409, 413, 422, 429, 503),
    summary="Complete an upload",
)
def complete_upload(
    upload_id: UploadId, completion: UploadCompletion, services: ServicesDependency
) -> UploadObject:
    """Make a file of the parts in the given order, checked like a file that is uploaded whole."""
    return to_upload(*service.complete(services, upload_id, completion))


@router.post(
    "/{upload_id}/cancel",
    dependencies=[SUBMIT],
    responses=documented(401, 403, 404, 409, 422, 429, 503),
    summary="Cancel an upload",
)
def cancel_upload(upload_id: UploadId, services: ServicesDependency) -> UploadObject:
    """Cancel an upload, and drop the parts that have arrived."""
    return to_upload(service.cancel(services, upload_id))
