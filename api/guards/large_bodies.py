"""Keeps a body of many megabytes in memory only once, and gives the memory back after the request."""

import ctypes
import json
from collections.abc import Callable, Coroutine
from hashlib import sha256
from typing import Any

from fastapi import Request as HttpRequest
from fastapi import Response
from fastapi.routing import APIRoute
from starlette.concurrency import run_in_threadpool
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LARGE_BYTES = 1 << 20
# A function of glibc, which otherwise keeps freed memory that lies between two live objects.
_give_back = getattr(ctypes.CDLL(None), "malloc_trim", None)


class OnceRequest(HttpRequest):
    """A request that drops its body once it was read as JSON, and keeps the body's SHA-256."""

    digest = sha256().hexdigest()

    async def body(self) -> bytes:
        """Return the body, empty once it was read as JSON."""
        if not hasattr(self, "_body"):
            body = bytearray()
            async for piece in self.stream():
                body += piece
            self._body: Any = body
        return self._body  # type: ignore[no-any-return]

    async def json(self) -> Any:
        """Parse the body as `json.loads` does; works only once."""
        await self.body()
        self.digest = sha256(self._body).hexdigest()
        text = self._body.decode(json.detect_encoding(self._body), "surrogatepass")
        self._body.clear()  # FastAPI holds the same object
        return json.loads(text)


class OnceRoute(APIRoute):
    """A route whose handler gets an OnceRequest."""

    def get_route_handler(self) -> Callable[[HttpRequest], Coroutine[Any, Any, Response]]:
        """Return the handler, which is given an `OnceRequest`."""
        handle = super().get_route_handler()

        async def handle_once(http_request: HttpRequest) -> Response:
            return await handle(OnceRequest(http_request.scope, http_request.receive))

        return handle_once


class GiveBackMemory:
    """Gives the memory of a large request back to the system."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and count its bytes."""
        received = 0

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            return message

        try:
            await self._app(scope, counted, send)
        finally:
            if received > LARGE_BYTES and _give_back is not None:
                await run_in_threadpool(_give_back, 0)
