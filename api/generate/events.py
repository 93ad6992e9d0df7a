"""Server-sent events."""

import json
from typing import Any

from api.errors import ApiError, ErrorBody

DONE = "data: [DONE]\n\n"


def event(body: Any) -> str:
    """Return one server-sent event."""
    return f"data: {json.dumps(body, ensure_ascii=False, separators=(',', ':'))}\n\n"


def error_event(error: ApiError) -> str:
    """Return an error that came after the stream had begun."""
    return event(ErrorBody(error=error.detail).model_dump())
