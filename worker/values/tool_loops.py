"""Define a tool loop: a conversation whose tool calls are made where it runs, until it has its answer."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, Self

from worker.values.sampling import SamplingParams


class OnFailure(StrEnum):
    """What becomes of a request whose call of a tool failed."""

    FAIL = "fail"  # it fails
    TELL_MODEL = "tell_model"  # the model reads the error in the place of the answer


@dataclass(frozen=True, slots=True)
class ToolLoop:
    """A conversation as it was submitted, and how its calls are made."""

    url: str  # each call is posted there
    messages: Sequence[Mapping[str, Any]]  # as chat templates take them
    tools: Sequence[Mapping[str, Any]]  # likewise
    variables: Mapping[str, Any]  # of the chat template
    max_turns: int = 8  # outputs of the model, the last one included
    forced_turns: int = 0  # the first turns, which have the `forced` parameters
    forced: SamplingParams | None = None
    timeout_seconds: float = 15.0  # of one call
    total_seconds: float = 300.0  # of all calls together
    on_failure: OnFailure = OnFailure.FAIL

    def to_json(self) -> str:
        """Return JSON that `from_json` reads back, with the order of all keys."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        return json.dumps(found | {"forced": None if self.forced is None else self.forced.to_json()})

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Rebuild what `to_json` wrote."""
        value = json.loads(text)
        forced = value["forced"]
        own = {
            "forced": None if forced is None else SamplingParams.from_json(forced),
            "on_failure": OnFailure(value["on_failure"]),
        }
        return cls(**value | own)
