"""Bounds the time for which a slow or broken client holds a connection, and lets it hold nothing more."""

import asyncio
from contextlib import suppress
from typing import Any

import h11
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol

from api.errors import SlowBodyError
from api.guards.framing import StrictConnection

MAX_HEAD_BYTES = 32 * 1024  # the request line and all headers
HEAD_SECONDS = 15.0
BODY_SECONDS = 30.0  # then the body must have arrived at this rate
BODY_BYTES_PER_SECOND = 1024


class ImpatientProtocol(H11Protocol):
    """Closes a connection whose next request line and headers are late; uvicorn alone waits for ever."""

    _head_timer: asyncio.TimerHandle | None = None

    def __init__(self, config: Config, *args: Any, **options: Any) -> None:
        super().__init__(config, *args, **options)
        self.conn = StrictConnection(h11.SERVER, config.h11_max_incomplete_event_size or MAX_HEAD_BYTES)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timer for the first request."""
        super().connection_made(transport)
        self._wait_for_head()

    def data_received(self, data: bytes) -> None:
        """Stop the timer once a request has begun."""
        super().data_received(data)
        if self._is_without_head():
            self._wait_for_head()
        elif self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer."""
        if self._head_timer is not None:
            self._head_timer.cancel()
        super().connection_lost(exc)

    def _wait_for_head(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_SECONDS, self._give_up)

    def _give_up(self) -> None:
        self._head_timer = None
        if self._is_without_head():
            self.transport.close()

    def _is_without_head(self) -> bool:
        return self.conn.their_state is h11.IDLE


class SlowBodies:
    """Answers 408 when a body comes at less than `BODY_BYTES_PER_SECOND`, after a start of `BODY_SECONDS`."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, with a deadline for its body."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        loop = asyncio.get_running_loop()
        deadline = loop.time() + BODY_SECONDS
        is_complete = False

        async def timed() -> Message:
            nonlocal deadline, is_complete
            if is_complete:  # from now on `receive` waits for the client to disconnect
                return await receive()
            try:
                async with asyncio.timeout_at(deadline):
                    message = await receive()
            except TimeoutError:
                raise SlowBodyError(
                    "The body arrived too slowly. Nothing was accepted.", param="body"
                ) from None
            deadline += len(message.get("body", b"")) / BODY_BYTES_PER_SECOND
            is_complete = not message.get("more_body", False)
            return message

        await self._app(scope, timed, send)


class GoneClients:
    """Drops an answer that h11 can no longer send, because the client's bytes turned out not to be HTTP."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on; when h11 refuses to send, the server has already answered 400."""

        async def send_if_there(message: Message) -> None:
            with suppress(h11.LocalProtocolError):
                await send(message)

        await self._app(scope, receive, send_if_there)
