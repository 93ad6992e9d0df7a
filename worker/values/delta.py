"""Define the growth of a streamed output, from the engine to the client."""

import json
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, Self

from worker.values.logprobs import Logprobs, TokenLogprob
from worker.values.outcomes import FinishReason


@dataclass(frozen=True, slots=True)
class Delta:
    """New part of a choice; its Deltas joined in order equal the choice's text and logprobs."""

    id: Hashable  # of the request: the caller's in the engine; outside it, the position in the batch
    index: int  # of the choice; outside the engine, over all prompts of the request
    offset: int  # characters of the output before this text; a gap shows that Deltas were lost
    text: str
    num_tokens: int = 0  # new ones
    logprobs: Logprobs | None = None  # of the new tokens, if asked for
    finish_reason: FinishReason | None = None  # on the choice's last Delta only
    token_ids: tuple[int, ...] = ()  # of the new tokens, if asked for

    def to_json(self) -> str:
        """Return the text of a message that `from_json` reads back."""
        value: dict[str, Any] = {
            "position": self.id,
            "index": self.index,
            "offset": self.offset,
            "text": self.text,
            "num_tokens": self.num_tokens,
        }
        if self.logprobs is not None:
            value["logprobs"] = [token.to_json() for token in self.logprobs]
        if self.finish_reason is not None:
            value["finish_reason"] = self.finish_reason
        if self.token_ids:
            value["token_ids"] = self.token_ids
        return json.dumps(value)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        """Rebuild the Delta of a message."""
        logprobs, reason = value.get("logprobs"), value.get("finish_reason")
        return cls(
            id=value["position"],
            index=value["index"],
            offset=value["offset"],
            text=value["text"],
            num_tokens=value["num_tokens"],
            logprobs=None if logprobs is None else tuple(map(TokenLogprob.from_json, logprobs)),
            finish_reason=None if reason is None else FinishReason(reason),
            token_ids=tuple(value.get("token_ids", ())),
        )
