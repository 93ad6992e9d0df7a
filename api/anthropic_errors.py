"""Defines the errors that Anthropic's clients read: which calls get them, their names and their body."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Literal

from pydantic import BaseModel, Field
from starlette.datastructures import Headers
from starlette.types import Scope

OWN_PATH = "/v1/messages"
SHARED_PATH = "/v1/models"  # OpenAI's clients ask it too
VERSION = "anthropic-version"  # every client of Anthropic's sends this header
REQUEST_ID = "request-id"

NAMES: Mapping[int, str] = {
    HTTPStatus.UNAUTHORIZED: "authentication_error",
    HTTPStatus.FORBIDDEN: "permission_error",
    HTTPStatus.NOT_FOUND: "not_found_error",
    HTTPStatus.CONFLICT: "conflict_error",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "request_too_large",
    HTTPStatus.TOO_MANY_REQUESTS: "rate_limit_error",
    HTTPStatus.SERVICE_UNAVAILABLE: "overloaded_error",
    HTTPStatus.GATEWAY_TIMEOUT: "timeout_error",
}


class AnthropicErrorDetail(BaseModel):
    """The description of an error; `code` and `param` are those of the other routes."""

    type: str
    message: str
    param: str | None = None
    code: str | None = None


class AnthropicErrorBody(BaseModel):
    """The body of every answer of /v1/messages that is not a success."""

    type: Literal["error"] = "error"
    error: AnthropicErrorDetail
    request_id: str | None = Field(description="As in the header `request-id`.")


def speaks_anthropic(scope: Scope) -> bool:
    """Return whether a call is one of Anthropic's clients'."""
    if scope["path"].startswith(SHARED_PATH):
        return VERSION in Headers(scope=scope)
    return is_own_path(scope["path"])


def is_own_path(path: str) -> bool:
    """Return whether a path is only for Anthropic's clients."""
    return path == OWN_PATH or path.startswith(f"{OWN_PATH}/")


def anthropic_name(status: int) -> str:
    """Return the name that Anthropic's clients know for a status."""
    other = "api_error" if status >= HTTPStatus.INTERNAL_SERVER_ERROR else "invalid_request_error"
    return NAMES.get(status, other)


def anthropic_error(
    status: int, message: str, *, param: str | None, code: str | None, request_id: str | None
) -> dict[str, Any]:
    """Return the body of an error."""
    detail = AnthropicErrorDetail(type=anthropic_name(status), message=message, param=param, code=code)
    return AnthropicErrorBody(error=detail, request_id=request_id).model_dump()
