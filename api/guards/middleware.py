"""Limits the size of every request's body, and adds headers for browsers to every answer."""

import re

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.errors import BodyTooLargeError, error_response

# These routes count the bytes of a file as it arrives, against limits of their own.
FILE_PATHS = re.compile(r"/v1/(files|uploads/[^/]+/parts)")

TOO_LARGE = "body_too_large"
# Browsers must not frame the API, guess a type, keep an answer, or send a referrer. Pages name the content
# that they may load (api/dashboard, api/documentation); every other answer forbids all content.
EVERYWHERE = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}
NOT_A_PAGE = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
}


class SecurityHeaders:
    """Tells browsers what they must not do with an answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on; add the headers that its answer lacks."""

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                is_page = headers.get("content-type", "").startswith("text/html")
                for name, value in (EVERYWHERE if is_page else EVERYWHERE | NOT_A_PAGE).items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, with_headers)


class BodyLimit:
    """Refuses a body over `max_bytes`, by its declared length or once that much has arrived."""

    def __init__(self, app: ASGIApp, *, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, counting its bytes."""
        if scope["type"] != "http" or FILE_PATHS.fullmatch(scope["path"]):
            await self._app(scope, receive, send)
            return
        declared = dict(scope["headers"]).get(b"content-length", b"")
        if declared.isdigit() and int(declared) > self._max_bytes:
            await self._refuse(scope, receive, send)
            return
        received = 0

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._max_bytes:
                raise BodyTooLargeError(self._message, param="body", code=TOO_LARGE)
            return message

        await self._app(scope, counted, send)

    @property
    def _message(self) -> str:
        return f"The body is larger than the limit of {self._max_bytes} bytes (HEADRACE_MAX_BODY_BYTES)."

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        status, kind = BodyTooLargeError.status, BodyTooLargeError.type
        answer = error_response(scope, status, self._message, kind, param="body", code=TOO_LARGE)
        await answer(scope, receive, send)
