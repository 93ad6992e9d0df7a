"""What every request passes through: a limit on the size of its body."""

import re

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.errors import BodyTooLargeError, error_response

# These routes count the bytes of a file as it arrives, against limits of their own.
FILE_PATHS = re.compile(r"/v1/(files|uploads/[^/]+/parts)")


class BodyLimit:
    """Refuse a body over `max_bytes`, by its declared length or once that much has arrived."""

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
                raise BodyTooLargeError(self._message, param="body")
            return message

        await self._app(scope, counted, send)

    @property
    def _message(self) -> str:
        return f"the body is over the limit of {self._max_bytes} bytes"

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        status, kind = BodyTooLargeError.status, BodyTooLargeError.type
        await error_response(status, self._message, kind, param="body")(scope, receive, send)
