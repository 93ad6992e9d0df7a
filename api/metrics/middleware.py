"""Counts and times every HTTP request."""

import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.metrics.collector import HttpMetrics


class MeasureHttp:
    """Records method, route and status of each request, and the time to the first byte of its answer."""

    def __init__(self, app: ASGIApp, *, metrics: HttpMetrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on; count and time its answer."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()

        async def measured(message: Message) -> None:
            if message["type"] == "http.response.start":
                # The route's template, because every path with an id would make a series of its own.
                route = getattr(scope.get("route"), "path", "none")
                method = scope["method"]
                self._metrics.requests.labels(method, route, str(message["status"])).inc()
                self._metrics.seconds.labels(method, route).observe(time.perf_counter() - began)
            await send(message)

        await self._app(scope, receive, measured)
