"""Reads the bodies of a file's lines, most of which differ in their texts only: the rest is checked once."""

import marshal
from dataclasses import dataclass, field, replace
from typing import Any

from api.inputs.checkpoint import Checkpoint
from api.inputs.models import find_checkpoint
from api.inputs.schema import storable
from api.openai.bodies import ChatBody, Endpoint
from api.openai.requests import OpenedChat, from_line, open_chat, read_line_body, to_request
from worker.store.requests.requests import NewRequest

MAX_KNOWN = 64  # bodies without their texts; further ones take the place of all
MAX_REST_BYTES = 1 << 16
VERSION = 2  # of marshal's format: the last one in which equal values have equal bytes


@dataclass(slots=True)
class AlikeBodies:
    """Turns bodies into requests as `from_line` does, those that are alike faster."""

    checkpoint: Checkpoint
    # By endpoint and by what is no text, with the types of all values: JSON's `1` and `true` are no equals.
    _known: dict[tuple[Endpoint, bytes], NewRequest | OpenedChat] = field(default_factory=dict)

    def from_line(
        self, endpoint: Endpoint, body: Any, *, custom_id: str | None, path: str = "body"
    ) -> NewRequest:
        """Return the request of a line; raises as `api.openai.requests.from_line`."""
        parted = _parted(endpoint, body)
        if parted is None:
            return from_line(self.checkpoint, endpoint, body, custom_id=custom_id, path=path)
        rest, texts = parted
        known = self._known.get((endpoint, rest))
        if known is None:
            return self._first(endpoint, rest, body, custom_id, path)
        if isinstance(known, OpenedChat):
            return known.with_texts(texts).to_request(custom_id, path)
        return replace(known, prompt=texts[0], custom_id=custom_id)

    def _first(
        self, endpoint: Endpoint, rest: bytes, body: Any, custom_id: str | None, path: str
    ) -> NewRequest:
        """Return the request of the first body of its kind, and keep what was checked."""
        read = read_line_body(endpoint, body, path)
        known: NewRequest | OpenedChat
        if isinstance(read, ChatBody):
            known = open_chat(find_checkpoint(self.checkpoint, read.model, path), read, path)
            request = known.to_request(custom_id, path)
        else:
            request = known = to_request(self.checkpoint, read, custom_id=custom_id, path=path)
        if len(self._known) == MAX_KNOWN:
            self._known.clear()
        self._known[endpoint, rest] = known
        return request


def _parted(endpoint: Endpoint, body: Any) -> tuple[bytes, list[str]] | None:
    """Return a body without its texts, as bytes, and these; None if it is not read in parts."""
    if not isinstance(body, dict):
        return None
    texts: list[Any]
    if endpoint is Endpoint.COMPLETIONS:
        texts, rest = [body.get("prompt")], body | {"prompt": None}
        if not texts[0]:
            return None
    elif endpoint is Endpoint.CHAT_COMPLETIONS:
        messages = body.get("messages")
        if not isinstance(messages, list) or not all(isinstance(one, dict) for one in messages):
            return None
        texts = [one.get("content") for one in messages]
        rest = body | {"messages": [one | {"content": None} for one in messages]}
    else:
        return None
    if not all(isinstance(text, str) for text in texts):
        return None
    try:
        for text in texts:
            storable(text)
        kept = marshal.dumps(rest, VERSION)
    except ValueError:  # what is wrong with it is said where it is read
        return None
    return (kept, texts) if len(kept) <= MAX_REST_BYTES else None
