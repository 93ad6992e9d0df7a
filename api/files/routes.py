"""Serves /v1/files to unmodified OpenAI clients: put in, look, read, delete."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, Path, Query
from fastapi import Request as HttpRequest
from fastapi.responses import StreamingResponse
from pydantic import ValidationError
from starlette.concurrency import run_in_threadpool

from api.dependencies import READ, SUBMIT, Services, ServicesDependency
from api.errors import OPENAI_STATUSES, InvalidInputError, RangeError, documented
from api.files import service
from api.files.form import Sink, read_form
from api.files.intake import Intake, PlainIntake
from api.files.schemas import (
    HOUR,
    MONTH,
    PURPOSES,
    ExpiresAfter,
    FileDeleted,
    FileList,
    FileObject,
    to_file,
)
from api.inputs.cursors import After
from api.inputs.schema import Text
from api.wrong_fields import code_of, explain
from worker.store.files.files import BATCH_INPUT, BATCH_OUTPUT, FileView

JSON_LINES, BYTES = "application/jsonl", "application/octet-stream"
CONTENT: dict[str, Any] = {
    JSON_LINES: {"schema": {"type": "string"}},
    BYTES: {"schema": {"type": "string", "format": "binary"}},  # of purposes other than batches
}
FIELDS = frozenset({"purpose", "wrong_lines", "file", "expires_after[anchor]", "expires_after[seconds]"})
RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")

router = APIRouter(prefix="/v1/files", tags=["files"], dependencies=[OPENAI_STATUSES])

FileId = Annotated[Text, Path(examples=["file-0d9c6d1f7a5b4c7f8f7b6f9f4c1e2a3b"], max_length=64)]

_seconds = {"type": "integer", "minimum": HOUR, "maximum": MONTH}
FORM: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["purpose", "file"],
                    "properties": {
                        "purpose": {"type": "string", "enum": list(PURPOSES)},
                        "wrong_lines": {"type": "string", "enum": ["refuse", "fail"]},
                        "expires_after[anchor]": {"type": "string", "enum": ["created_at"]},
                        "expires_after[seconds]": _seconds,
                        "file": {"type": "string", "format": "binary", "description": "May be gzip."},
                    },
                    "examples": [{"purpose": "batch", "file": "@requests.jsonl"}],
                }
            }
        },
    }
}


@router.post(
    "",
    dependencies=[SUBMIT],
    responses=documented(401, 403, 413, 422, 429, 503),
    openapi_extra=FORM,
    summary="Put a file in",
)
async def create_file(http_request: HttpRequest, services: ServicesDependency) -> FileObject:
    """Take in a file. A batch's input is JSON lines, checked as they arrive; an error names up to 100 lines.

    `purpose` and `wrong_lines` come before `file`, as clients send them. `wrong_lines=fail` accepts wrong
    lines, and each becomes a failed request of a batch.
    """
    await run_in_threadpool(service.check_room, services)
    incoming = _Incoming(services)
    try:
        form = await read_form(
            http_request, file_field="file", open_sink=incoming.open, give_way=services.traffic.give_way
        )
        view = await run_in_threadpool(incoming.keep, form)
    finally:
        await run_in_threadpool(incoming.close)
    return to_file(view)


@router.get("", dependencies=[READ], responses=documented(401, 403, 404, 422, 429, 503), summary="List files")
def list_files(
    services: ServicesDependency,
    purpose: Annotated[Text | None, Query(max_length=64)] = None,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 10_000,
    after: After = None,
    order: Literal["asc", "desc"] = "desc",
) -> FileList:
    """Return files by the time they were made, the newest first unless `order` says otherwise."""
    found, has_more = service.page(services, purpose=purpose, after=after, limit=limit, order=order)
    data = [to_file(view) for view in found]
    return FileList(
        data=data,
        first_id=data[0].id if data else None,
        last_id=data[-1].id if data else None,
        has_more=has_more,
    )


@router.get(
    "/{file_id}",
    dependencies=[READ],
    responses=documented(401, 403, 404, 422, 429, 503),
    summary="Look at a file",
)
def get_file(file_id: FileId, services: ServicesDependency) -> FileObject:
    """Return a file's metadata."""
    return to_file(service.get(services, file_id))


@router.get(
    "/{file_id}/content",
    dependencies=[READ],
    response_class=StreamingResponse,
    responses={
        HTTPStatus.OK: {"content": CONTENT},
        HTTPStatus.PARTIAL_CONTENT: {"description": "The bytes asked for.", "content": CONTENT},
        **documented(401, 403, 404, 416, 422, 429, 503),
    },
    summary="Read a file",
)
def get_content(
    file_id: FileId,
    services: ServicesDependency,
    wanted: Annotated[str | None, Header(alias="range", description="One range, such as bytes=0-99.")] = None,
) -> StreamingResponse:
    """Stream a file's bytes, or the requested range of them."""
    view = service.get(services, file_id)
    is_lines = view.purpose in {BATCH_INPUT, BATCH_OUTPUT}
    start, end = (0, view.num_bytes) if wanted is None else _range(wanted, view.num_bytes)
    is_part = (start, end) != (0, view.num_bytes)
    headers = {"accept-ranges": "bytes", "content-length": str(end - start), "etag": f'"{view.sha256}"'}
    if is_part:
        headers["content-range"] = f"bytes {start}-{end - 1}/{view.num_bytes}"
    return StreamingResponse(
        service.read(services, view, start, end),
        status_code=HTTPStatus.PARTIAL_CONTENT if is_part else HTTPStatus.OK,
        media_type=JSON_LINES if is_lines else BYTES,
        headers=headers,
    )


@router.delete(
    "/{file_id}",
    dependencies=[SUBMIT],
    responses=documented(401, 403, 404, 409, 422, 429, 503),
    summary="Delete a file",
)
def delete_file(file_id: FileId, services: ServicesDependency) -> FileDeleted:
    """Delete a file. A batch that was made from it goes on."""
    service.remove(services, file_id)
    return FileDeleted(id=file_id)


@dataclass(slots=True)
class _Incoming:
    """A file that arrives in a form. Always close it."""

    services: Services
    purpose: str = BATCH_INPUT
    wrong_lines: str | None = None
    intake: Intake | PlainIntake | None = None

    def open(self, form: Mapping[str, str]) -> Sink:
        """Return the sink of the file, by the fields that came before it."""
        self.purpose = _choice(form, "purpose", PURPOSES) or BATCH_INPUT
        self.wrong_lines = _choice(form, "wrong_lines", ("refuse", "fail"))
        self.intake = service.intake(self.services, self.purpose, self.wrong_lines)
        return self.intake.feed

    def keep(self, form: dict[str, str]) -> FileView:
        """Check the whole form, and store the file."""
        lifetime = _check_fields(form)
        for name, used in (("purpose", self.purpose), ("wrong_lines", self.wrong_lines)):
            if form.get(name) != used:
                raise InvalidInputError(f"{name}: must come before the file in the form", param=name)
        assert self.intake is not None  # noqa: S101 - a form without a file was refused
        return service.keep(
            self.services,
            self.intake.finish(),
            purpose=self.purpose,
            filename=form["file"],
            lifetime_seconds=lifetime,
        )

    def close(self) -> None:
        """Remove the file from the spool."""
        if self.intake is not None:
            self.intake.close()


def _choice(form: Mapping[str, str], name: str, allowed: Sequence[str]) -> str | None:
    given = form.get(name)
    if given is not None and given not in allowed:
        known = ", ".join(map(repr, allowed))
        raise InvalidInputError(f"{name}: must be one of {known}, but is {given!r}", param=name)
    return given


def _check_fields(form: dict[str, str]) -> int | None:
    """Check a form's fields; return how long the file is to be kept, in seconds."""
    if unknown := form.keys() - FIELDS:
        name = min(unknown)
        raise InvalidInputError(
            f"{name}: is not a known field; check its spelling", param=name, code="unknown_field"
        )
    if _choice(form, "purpose", PURPOSES) is None:
        raise InvalidInputError("purpose: is required", param="purpose")
    _choice(form, "wrong_lines", ("refuse", "fail"))
    parts = {name[14:-1]: value for name, value in form.items() if name.startswith("expires_after[")}
    if not parts:
        return None
    try:
        return ExpiresAfter.model_validate(parts, strict=False).seconds
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        param = f"expires_after[{first['loc'][0]}]"
        raise InvalidInputError(f"{param}: {explain(first)}", param=param, code=code_of(first)) from error


def _range(wanted: str, num_bytes: int) -> tuple[int, int]:
    """Return [start, end) of a Range header; the whole file if the header may be ignored (RFC 9110, 14.2)."""
    match = RANGE.fullmatch(wanted)
    if match is None or wanted == "bytes=-":
        return 0, num_bytes
    first, last = match.groups()
    if not first:
        start, end = max(0, num_bytes - int(last)), num_bytes
    else:
        start, end = int(first), min(num_bytes, int(last) + 1 if last else num_bytes)
    if start >= end:
        raise RangeError(
            f"range: starts after the end of the file, which has {num_bytes} bytes", param="range"
        )
    return start, end
