"""Limits the bodies of strangers, because FastAPI reads and parses a body before a route checks the key."""

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.guards import auth
from worker.store.database.session import Store

STRANGER_BYTES = 64 * 1024


class StrangersBodies:
    """Takes in at most `STRANGER_BYTES` from a caller without a good key; a longer body is answered 401."""

    def __init__(self, app: ASGIApp, *, store: Store) -> None:
        self._app = app
        self._store = store

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and check the key once the body is long."""
        received, is_known = 0, False

        async def checked() -> Message:
            nonlocal received, is_known
            message = await receive()
            received += len(message.get("body", b""))
            if received > STRANGER_BYTES and not is_known:
                await run_in_threadpool(auth.recognize, self._store, auth.key_of(Headers(scope=scope)))
                is_known = True
            return message

        await self._app(scope, checked, send)
