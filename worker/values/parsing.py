"""Define how the text of an output is parsed when it is written as an answer.

The engine reads nothing of it but `thinking`.
"""

from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, Self

from worker.values.thinking import Thinking


class Family(StrEnum):
    """Family of models that mark tool calls and reasoning in their text in the same way."""

    HERMES = "hermes"  # <tool_call>{"name": ..., "arguments": ...}</tool_call>; Qwen too
    LLAMA = "llama"  # {"name": ..., "parameters": ...}
    MISTRAL = "mistral"  # [TOOL_CALLS]
    CODER = "coder"  # <function=name><parameter=key>, as Qwen3-Coder writes calls
    DEEPSEEK = "deepseek"  # <｜tool▁calls▁begin｜>
    GEMMA = "gemma"  # call:name{key:value} between tags
    HARMONY = "harmony"  # channels, as gpt-oss writes them
    NONE = "none"  # no marks: all text is content


@dataclass(frozen=True, slots=True)
class Parsing:
    """How to parse one request's outputs. It is stored with the request, so every answer says the same."""

    family: Family
    tools: tuple[str, ...] = ()  # names that may be called; without any, no call is looked for
    # Of CODER, which writes no JSON: `function.parameter` of each that is no text.
    typed: tuple[str, ...] = ()
    is_older: bool = False  # the client asked with `functions`, and reads `function_call`
    thinking: Thinking | None = None  # marks of the reasoning before the answer; None: no reasoning
    hides_reasoning: bool = False  # the client reads the answer only

    def to_json(self) -> dict[str, Any]:
        """Return what differs from the defaults, as a JSON object that `from_json` reads back."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        if self.thinking is not None:
            found["thinking"] = self.thinking.to_json()
        return {name: value for name, value in found.items() if value}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        """Rebuild what `to_json` wrote."""
        thinking = value.get("thinking")
        known = {
            "family": Family(value["family"]),
            "tools": tuple(value.get("tools", ())),
            "typed": tuple(value.get("typed", ())),
            "thinking": None if thinking is None else Thinking.from_json(thinking),
        }
        return cls(**value | known)
