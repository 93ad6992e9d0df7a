"""Writes server-sent events."""

from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

from fastapi.responses import StreamingResponse

from api import json_lines
from api.errors import ApiError, ErrorBody
from api.event_stream import MEDIA_TYPE

DONE = "data: [DONE]\n\n"


async def respond(stream: AsyncGenerator[str, None]) -> StreamingResponse:
    """Return a stream as a response, once its first event has arrived.

    Work that is refused before that gets an ordinary error answer, with its status.
    """
    first = await anext(stream, None)

    async def events() -> AsyncIterator[str]:
        try:
            if first is not None:
                yield first
            async for one in stream:
                yield one
        finally:
            await stream.aclose()

    return StreamingResponse(events(), media_type=MEDIA_TYPE, headers={"Cache-Control": "no-cache"})


def event(body: Any) -> str:
    """Return one server-sent event."""
    return f"data: {json_lines.dumps(body)}\n\n"


def error_event(error: ApiError) -> str:
    """Return the event of an error that came after the stream had begun."""
    return event(ErrorBody(error=error.detail).model_dump())
