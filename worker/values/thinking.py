"""Define how models mark what they think before they answer, and how long they may."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self


class ThinkingStyle(StrEnum):
    """Marks around a model's thoughts."""

    TAGS = "tags"  # as Qwen, DeepSeek and most others write them
    MISTRAL = "mistral"
    HARMONY = "harmony"  # the analysis channel of gpt-oss


OPENINGS = {
    ThinkingStyle.TAGS: "<think>",
    ThinkingStyle.MISTRAL: "[THINK]",
    ThinkingStyle.HARMONY: "<|channel|>analysis<|message|>",
}
CLOSINGS = {
    ThinkingStyle.TAGS: "</think>",
    ThinkingStyle.MISTRAL: "[/THINK]",
    ThinkingStyle.HARMONY: "<|channel|>final<|message|>",
}
# What a model is made to write when it has thought for long enough; each ends the thoughts.
ENDS = {
    ThinkingStyle.TAGS: "\n</think>\n\n",
    ThinkingStyle.MISTRAL: "[/THINK]",
    ThinkingStyle.HARMONY: "<|end|><|start|>assistant<|channel|>final<|message|>",
}


@dataclass(frozen=True, slots=True)
class Thinking:
    """Marks of the thoughts at the beginning of an output. `is_open`: the prompt has opened them already."""

    style: ThinkingStyle
    is_open: bool = False

    @property
    def opening(self) -> str:
        """The text before the thoughts."""
        return OPENINGS[self.style]

    @property
    def closing(self) -> str:
        """The text that the answer follows."""
        return CLOSINGS[self.style]

    @property
    def end(self) -> str:
        """The text that ends the thoughts early."""
        return ENDS[self.style]

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object that `from_json` reads back."""
        return {"style": self.style.value, "is_open": self.is_open}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        """Rebuild what `to_json` wrote."""
        return cls(ThinkingStyle(value["style"]), value["is_open"])
