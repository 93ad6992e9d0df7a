"""Defines every error that a client sees; the only module with HTTP status codes.

ApiError
├── InvalidInputError      422  a field is wrong; `param` names it
│   └── InvalidLinesError       some lines of a file are wrong; `lines` names them
├── AuthenticationError    401  no API key, or not a good one
├── PermissionDeniedError  403  the API key does not allow it
├── NotFoundError          404  no such batch, or another tenant's
│   └── ModelNotFoundError      another model is served
├── ConflictError          409  the state of the batch, file, ... does not allow it
├── RangeError             416  the bytes asked for are not there
├── RateLimitedError       429  too many calls, or too much work queued
├── RequestFailedError     500  an accepted request could not be run; 400 if it is to blame, 504 on timeout
├── SlowBodyError          408  the body came too slowly
├── BodyTooLargeError      413  the body is over the limit
├── MediaTypeError         415  the body is not sent as JSON
├── NoWorkerError          503  nobody is there to do it now
├── StorageFullError       503  files cannot be kept now
├── DatabaseAwayError      503  Postgres cannot be asked now
├── WaitLimitError         504  it takes longer than the client may wait
├── ClientGoneError        499  nobody will read the answer
├── KeyReusedError         422  an Idempotency-Key came back with another body
└── NotConfiguredError     501  this deployment lacks a setting that the feature needs
"""

import logging
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from types import MappingProxyType
from typing import Any

from fastapi import Depends
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from starlette.types import Scope

from api.anthropic_errors import anthropic_error, speaks_anthropic
from api.wrong_fields import code_of, explain, field_path
from worker.store.database.session import DATABASE_AWAY

logger = logging.getLogger(__name__)

RETRY_AFTER_SECONDS = "5"
REQUEST_ID_STATE = "request_id"  # in the `state` of a call's scope


class LineError(BaseModel):
    """An error in a line of a file. `line` counts from 1."""

    code: str
    message: str
    param: str | None = None
    line: int | None = None


class ErrorDetail(BaseModel):
    """The description of an error. `param` is the path of the field, such as `prompts[3]`."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None
    lines: list[LineError] | None = Field(default=None, description="the first wrong lines of a file")


class ErrorBody(BaseModel):
    """The body of every answer that is not a success."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "error": {
                        "message": "prompts[1]: must not be empty",
                        "type": "invalid_request_error",
                        "param": "prompts[1]",
                        "code": "wrong_length",
                    }
                }
            ]
        }
    )

    error: ErrorDetail


class ApiError(Exception):
    """An error to tell the client."""

    status: int = HTTPStatus.INTERNAL_SERVER_ERROR
    type: str = "invalid_request_error"
    headers: Mapping[str, str] = MappingProxyType({})
    lines: Sequence[LineError] = ()
    default_code: str | None = None  # docs/errors.md lists all codes

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code or self.default_code

    @property
    def detail(self) -> ErrorDetail:
        """The error as the client reads it."""
        return ErrorDetail(message=self.message, type=self.type, param=self.param, code=self.code)


class InvalidInputError(ApiError):
    """A field is wrong."""

    status = HTTPStatus.UNPROCESSABLE_ENTITY
    default_code = "invalid_value"


class InvalidLinesError(InvalidInputError):
    """Some lines of a file are wrong; nothing of the file was kept."""

    def __init__(self, lines: Sequence[LineError]) -> None:
        first = lines[0]
        others = f" (`lines` names {len(lines)} wrong lines)" if len(lines) > 1 else ""
        super().__init__(f"line {first.line}: {first.message}{others}", param=first.param, code=first.code)
        self.lines = lines


class AuthenticationError(ApiError):
    """The API key is missing or not valid."""

    status = HTTPStatus.UNAUTHORIZED
    type = "authentication_error"

    def __init__(self, message: str, *, code: str) -> None:
        super().__init__(message, code=code)
        self.headers = {"WWW-Authenticate": "Bearer"}


class PermissionDeniedError(ApiError):
    """The caller is known and may not do this."""

    status = HTTPStatus.FORBIDDEN
    type = "permission_error"


class NotFoundError(ApiError):
    """The resource does not exist, or belongs to another tenant."""

    status = HTTPStatus.NOT_FOUND
    type = "not_found_error"
    default_code = "not_found"


class ModelNotFoundError(NotFoundError):
    """Another model is served. OpenAI's clients know it by this type and code."""

    type = "invalid_request_error"


class RequestFailedError(ApiError):
    """An accepted request has no complete output."""

    type = "server_error"

    def __init__(self, message: str, *, code: str | None = None, is_its_fault: bool = False) -> None:
        super().__init__(message, code=code)
        if is_its_fault or code in {"generation_failed", "context_length_exceeded"}:
            self.status = HTTPStatus.BAD_REQUEST
            self.type = "invalid_request_error"
        elif code == "timeout":
            self.status, self.type = HTTPStatus.GATEWAY_TIMEOUT, "timeout_error"


class NoWorkerError(ApiError):
    """No live worker can do the work now."""

    status = HTTPStatus.SERVICE_UNAVAILABLE
    default_code = "no_worker"
    type = "service_unavailable"


class WaitLimitError(ApiError):
    """The work takes longer than the client may wait."""

    status = HTTPStatus.GATEWAY_TIMEOUT
    type = "timeout_error"


class ClientGoneError(ApiError):
    """The client has disconnected before the answer."""

    status = 499  # as nginx logs it


class RateLimitedError(ApiError):
    """The caller is over a limit. `retry_after` is in seconds; None: waiting does not help."""

    status = HTTPStatus.TOO_MANY_REQUESTS
    type = "rate_limit_error"

    def __init__(self, message: str, *, code: str, retry_after: int | None) -> None:
        super().__init__(message, code=code)
        # OpenAI's clients retry every 429, unless `x-should-retry` is false.
        self.headers = (
            {"x-should-retry": "false"} if retry_after is None else {"Retry-After": str(retry_after)}
        )


class SlowBodyError(ApiError):
    """The body came too slowly."""

    status = HTTPStatus.REQUEST_TIMEOUT
    default_code = "body_too_slow"


class BodyTooLargeError(ApiError):
    """The body is over the limit."""

    status = HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    default_code = "body_too_large"


class MediaTypeError(ApiError):
    """The body is not sent as JSON."""

    status = HTTPStatus.UNSUPPORTED_MEDIA_TYPE

    def __init__(self, media_type: str | None) -> None:
        sent = f"as `{media_type}`" if media_type else "without a content type"
        super().__init__(
            f"The body was sent {sent}. Send JSON with the header `Content-Type: application/json`"
            " (with curl: use `--json` in place of `-d`).",
            param="body",
            code="unsupported_media_type",
        )


class KeyReusedError(ApiError):
    """An Idempotency-Key came back with another body."""

    status = HTTPStatus.UNPROCESSABLE_ENTITY
    type = "idempotency_error"
    default_code = "idempotency_key_reused"


class ConflictError(ApiError):
    """The state of the resource does not allow the call; trying again does not help."""

    status = HTTPStatus.CONFLICT
    default_code = "conflict"
    headers: Mapping[str, str] = MappingProxyType({"x-should-retry": "false"})


class RangeError(ApiError):
    """The bytes asked for are not there."""

    status = HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE
    default_code = "range_not_satisfiable"


class StorageFullError(ApiError):
    """Files cannot be kept now: nothing was accepted."""

    status = HTTPStatus.SERVICE_UNAVAILABLE
    default_code = "storage_unavailable"
    type = "service_unavailable"
    headers: Mapping[str, str] = MappingProxyType({"Retry-After": RETRY_AFTER_SECONDS})


class DatabaseAwayError(ApiError):
    """Postgres does not answer, or has no free connection; nothing was accepted."""

    status = HTTPStatus.SERVICE_UNAVAILABLE
    default_code = "database_unavailable"
    type = "service_unavailable"
    headers: Mapping[str, str] = MappingProxyType({"Retry-After": RETRY_AFTER_SECONDS})


class NotConfiguredError(ApiError):
    """This deployment lacks a setting that the feature needs."""

    status = HTTPStatus.NOT_IMPLEMENTED
    type = "not_configured_error"


async def _openai_statuses() -> None:
    """Mark a router; `status_for` looks for this."""


# Routers for OpenAI's and Anthropic's clients declare this: APIRouter(dependencies=[OPENAI_STATUSES]).
OPENAI_STATUSES = Depends(_openai_statuses)


def status_for(route: object, status: int) -> int:
    """Return the status of an error on a route: those clients know 400 for wrong input, not 422."""
    is_openai = OPENAI_STATUSES in getattr(route, "dependencies", ())
    is_wrong = status == HTTPStatus.UNPROCESSABLE_ENTITY
    return HTTPStatus.BAD_REQUEST if is_openai and is_wrong else status


def error_response(
    scope: Scope,
    status: int,
    message: str,
    error_type: str,
    *,
    param: str | None = None,
    code: str | None = None,
    lines: Sequence[LineError] = (),
    headers: Mapping[str, str] | None = None,
) -> JSONResponse:
    """Return an error in the one format of this API, or in that of Anthropic's clients to their calls."""
    if speaks_anthropic(scope):
        request_id = scope.get("state", {}).get(REQUEST_ID_STATE)
        told = anthropic_error(status, message, param=param, code=code, request_id=request_id)
        return JSONResponse(told, status_code=status, headers=headers)
    detail = ErrorDetail(message=message, type=error_type, param=param, code=code, lines=list(lines) or None)
    body = ErrorBody(error=detail).model_dump(exclude=None if lines else {"error": {"lines"}})
    return JSONResponse(body, status_code=status, headers=headers)


def still_running(answer: BaseModel) -> JSONResponse:
    """Return the answer to a wait that was too short: 202, as the work is accepted and goes on."""
    return JSONResponse(answer.model_dump(mode="json"), status_code=HTTPStatus.ACCEPTED)


def documented(*statuses: int, body: type[BaseModel] = ErrorBody) -> dict[int | str, dict[str, Any]]:
    """Return the `responses` of a route for OpenAPI."""
    return {status: {"model": body, "description": HTTPStatus(status).phrase} for status in statuses}


def invalid_input(error: Mapping[str, Any], body: Any = None, path: str = "") -> InvalidInputError:
    """Return the client's error for a field of `body`, below `path`, that pydantic refused."""
    param = ".".join(part for part in (path, field_path(error, body)) if part) or "body"
    return InvalidInputError(f"{param}: {explain(error)}", param=param, code=code_of(error))


ON_THE_WAY = (ApiError, *DATABASE_AWAY)


def on_the_way(error: Exception) -> ApiError:
    """Return the client's error for one of `ON_THE_WAY`; usable after an answer has begun."""
    if isinstance(error, ApiError):
        return error
    logger.warning("Postgres does not answer: %s", str(error).splitlines()[0])
    is_full = isinstance(error, PoolTimeoutError)
    why = "This process has no free connection to the database" if is_full else "The database does not answer"
    return DatabaseAwayError(f"{why}. Nothing was accepted. Try again.")
