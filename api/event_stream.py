"""How server-sent events are announced and documented."""

from typing import Any

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
