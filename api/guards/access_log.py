"""Gives every HTTP request an id, and logs how it was answered."""

import logging
import re
import time
from http import HTTPStatus
from uuid import uuid4

from fastapi import Request as HttpRequest
from fastapi.responses import JSONResponse
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api import anthropic_errors
from api.anthropic_errors import speaks_anthropic
from api.errors import REQUEST_ID_STATE, error_response
from worker.telemetry import fields, work

logger = logging.getLogger("headrace.access")

REQUEST_ID = "X-Request-ID"
VALID_ID = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")
# Machines ask these every few seconds.
PROBES = {"/health", "/ready", "/metrics"}


def unexpected(http_request: HttpRequest, error: Exception) -> JSONResponse:
    """Log an error of ours and answer 500; this runs outside all middleware."""
    request_id = http_request.scope["state"][REQUEST_ID_STATE]
    logger.error("unexpected error", exc_info=error, extra=fields(request_id=request_id))
    return error_response(
        http_request.scope,
        HTTPStatus.INTERNAL_SERVER_ERROR,
        f"The server failed unexpectedly. Its log has the cause, with the request id {request_id}.",
        "server_error",
        code="internal_error",
        headers={REQUEST_ID: request_id},
    )


class AccessLog:
    """Logs method, path, status and time of each request; every line that it causes has its id.

    The id is the client's `X-Request-ID`, if that is a plain word, and else a new one. The answer has it too.
    The path is logged without its query.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get(REQUEST_ID, "")
        request_id = given if VALID_ID.fullmatch(given) else uuid4().hex
        scope.setdefault("state", {})[REQUEST_ID_STATE] = request_id
        names = (REQUEST_ID, anthropic_errors.REQUEST_ID) if speaks_anthropic(scope) else (REQUEST_ID,)
        status: int | None = None  # None: it was not answered
        began = time.perf_counter()

        async def with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                for name in names:
                    MutableHeaders(scope=message)[name] = request_id
            await send(message)

        with work(request_id=request_id):
            try:
                await self._app(scope, receive, with_id)
            except Exception:
                status = status or 500  # the application's last handler answers so
                raise
            finally:
                level = logging.DEBUG if scope["path"] in PROBES else logging.INFO
                ms = round((time.perf_counter() - began) * 1000, 1)
                answered = fields(method=scope["method"], path=scope["path"], status=status, ms=ms)
                logger.log(level, "request", extra=answered)
