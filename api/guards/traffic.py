"""Makes long uploads give way to other requests, as all share one thread and one interpreter lock."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic

from starlette.types import ASGIApp, Receive, Scope, Send

# A request counts as short until it has lasted this long; from then on no upload waits for it.
SHORT_SECONDS = 0.03
WAIT_SECONDS = 0.005  # at most, after each piece of an upload's work


@dataclass(slots=True)
class Traffic:
    """The requests that are being answered now, and the time at which each began."""

    _began: dict[object, float] = field(default_factory=dict)
    _has_left: asyncio.Event = field(default_factory=asyncio.Event)

    def enter(self, request: object) -> None:
        """Count a request."""
        self._began[request] = monotonic()

    def leave(self, request: object) -> None:
        """Stop counting a request."""
        del self._began[request]
        self._has_left.set()

    async def give_way(self) -> None:
        """Let others have their turn, and wait a moment while short requests are being answered."""
        await asyncio.sleep(0)
        with suppress(TimeoutError):
            async with asyncio.timeout(WAIT_SECONDS):
                while self._has_short():
                    self._has_left.clear()
                    await self._has_left.wait()

    def _has_short(self) -> bool:
        since = monotonic() - SHORT_SECONDS
        return any(began > since for began in self._began.values())


class CountTraffic:
    """Counts every request for as long as it is being answered."""

    def __init__(self, app: ASGIApp, *, traffic: Traffic) -> None:
        self._app = app
        self._traffic = traffic

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        request = object()
        self._traffic.enter(request)
        try:
            await self._app(scope, receive, send)
        finally:
            self._traffic.leave(request)
