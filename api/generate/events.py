"""Server-sent events."""

from typing import Any

from api import json_lines
from api.errors import ApiError, ErrorBody

DONE = "data: [DONE]\n\n"


def event(body: Any) -> str:
    """Return one server-sent event."""
    return f"data: {json_lines.dumps(body)}\n\n"


def error_event(error: ApiError) -> str:
    """Return an error that came after the stream had begun."""
    return event(ErrorBody(error=error.detail).model_dump())
