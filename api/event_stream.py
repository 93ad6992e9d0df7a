"""Defines the media type and the OpenAPI description of server-sent events."""

from typing import Any

MEDIA_TYPE = "text/event-stream"
# The OpenAPI content of a route that streams; the schema describes each event.
DOCUMENTED: dict[str, Any] = {
    MEDIA_TYPE: {
        "schema": {
            "type": "object",
            "properties": {"event": {"type": "string"}, "data": {"type": "string", "description": "JSON."}},
            "required": ["data"],
        }
    }
}
