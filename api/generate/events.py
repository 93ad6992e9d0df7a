"""Server-sent events."""

from typing import Any

from api import json_lines
from api.errors import ApiError, ErrorBody

MEDIA_TYPE = "text/event-stream"
# What a route documents of its stream: the schema is that of each event.
DOCUMENTED: dict[str, Any] = {
    MEDIA_TYPE: {
        "schema": {
            "type": "object",
            "properties": {"event": {"type": "string"}, "data": {"type": "string", "description": "JSON."}},
            "required": ["data"],
        }
    }
}
DONE = "data: [DONE]\n\n"


def event(body: Any) -> str:
    """Return one server-sent event."""
    return f"data: {json_lines.dumps(body)}\n\n"


def error_event(error: ApiError) -> str:
    """Return an error that came after the stream had begun."""
    return event(ErrorBody(error=error.detail).model_dump())
