"""Answers errors of every kind in the one format: ours, pydantic's, FastAPI's and the store's."""

from collections.abc import Mapping
from http import HTTPStatus

from fastapi import FastAPI
from fastapi import Request as HttpRequest
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from api.errors import (
    ON_THE_WAY,
    MediaTypeError,
    NotFoundError,
    RateLimitedError,
    error_response,
    invalid_input,
    on_the_way,
    status_for,
)
from worker.store.database.cursors import UnknownCursorError
from worker.store.tenants.quotas import QuotaExceededError

QUOTA_RETRY_SECONDS = 30  # work that ends makes room


def install(app: FastAPI) -> None:
    """Register handlers that give every error of the application the one format."""
    for kind in ON_THE_WAY:
        app.exception_handler(kind)(_api_error)
    app.exception_handler(QuotaExceededError)(_quota_exceeded)
    app.exception_handler(UnknownCursorError)(_unknown_cursor)
    app.exception_handler(RequestValidationError)(_invalid)
    app.exception_handler(HTTPException)(_http)


def _api_error(http_request: HttpRequest, raised: Exception) -> JSONResponse:
    error = on_the_way(raised)
    return error_response(
        http_request.scope,
        status_for(http_request.scope.get("route"), error.status),
        error.message,
        error.type,
        param=error.param,
        code=error.code,
        lines=error.lines,
        headers=error.headers,
    )


def _quota_exceeded(http_request: HttpRequest, error: QuotaExceededError) -> JSONResponse:
    retry_after = QUOTA_RETRY_SECONDS if error.can_wait else None
    limited = RateLimitedError(str(error), code=f"quota_{error.quota}", retry_after=retry_after)
    return _api_error(http_request, limited)


def _unknown_cursor(http_request: HttpRequest, error: UnknownCursorError) -> JSONResponse:
    named = ("after", "after_id", "before_id")
    param = next((name for name in named if http_request.query_params.get(name) == str(error)), "after")
    message = f"{param}: there is no {error} to continue from"
    return _api_error(http_request, NotFoundError(message, param=param, code="unknown_cursor"))


def _invalid(http_request: HttpRequest, error: RequestValidationError) -> JSONResponse:
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        message = f"The body is not valid JSON: {first['ctx']['error']} at character {first['loc'][-1]}."
        return error_response(
            http_request.scope,
            HTTPStatus.BAD_REQUEST,
            message,
            "invalid_request_error",
            param="body",
            code="invalid_json",
        )
    if isinstance(error.body, (bytes, bytearray)):  # FastAPI has not parsed it
        return _api_error(http_request, MediaTypeError(http_request.headers.get("content-type")))
    return _api_error(http_request, invalid_input(first, error.body))


def _http(http_request: HttpRequest, error: HTTPException) -> JSONResponse:
    cause = error.__cause__
    # Raised by a middleware while FastAPI read the body.
    if isinstance(cause, ON_THE_WAY):
        return _api_error(http_request, cause)
    return error_response(
        http_request.scope,
        error.status_code,
        f"The body cannot be read: {_why(cause)}." if cause else _without_route(http_request, error),
        "invalid_request_error",
        param="body" if cause else None,
        code="invalid_json" if cause else HTTPStatus(error.status_code).name.lower(),
        headers=_headers(http_request, error),
    )


def _without_route(http_request: HttpRequest, error: HTTPException) -> str:
    """Return the message of an error that FastAPI raised because no route has this path and method."""
    asked = f"{http_request.method} {http_request.url.path}"
    if error.status_code == HTTPStatus.NOT_FOUND:
        return f"There is no route {asked[:200]}. /docs lists the routes."
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        return f"There is no route {asked[:200]}. The header `Allow` lists the methods of this path."
    return str(error.detail)


def _headers(http_request: HttpRequest, error: HTTPException) -> Mapping[str, str] | None:
    """Return an error's headers; for a 405, `Allow` lists the methods of all routes of the path."""
    route = http_request.scope.get("route")
    methods = http_request.app.openapi()["paths"].get(getattr(route, "path", ""))
    if error.status_code != HTTPStatus.METHOD_NOT_ALLOWED or methods is None:
        return error.headers
    return {"Allow": ", ".join(sorted(method.upper() for method in methods))}


def _why(cause: BaseException) -> str:
    if isinstance(cause, RecursionError):
        return "it is nested too deeply"
    if isinstance(cause, UnicodeDecodeError):
        return f"it is not UTF-8 at byte {cause.start}"
    if isinstance(cause, ValueError):  # Python's parser refuses no other valid JSON
        return "it has a number of too many digits"
    return str(cause)
