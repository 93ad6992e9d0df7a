"""Define sampling parameters as they are stored with a batch or a request."""

from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, Self

MAX_LOGPROBS = 20  # likeliest tokens that can be reported beside each chosen one
MAX_CHOICES = 128  # of one prompt


class FormatKind(StrEnum):
    """Kind of constraint on an output's form."""

    JSON_OBJECT = "json_object"
    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    CHOICE = "choice"


class Optimization(StrEnum):
    """Measures that may make a request cheaper. Its tokens do not depend on them."""

    NONE = "none"  # alone in its Steps, nothing cached
    BASIC = "basic"  # batched with others
    FULL = "full"  # batched, and served by every cache there is


@dataclass(frozen=True, slots=True)
class OutputFormat:
    """Constraint on a whole output. `source`: a schema's text, a pattern or a list of options, by `kind`."""

    kind: FormatKind
    source: Any = None  # None for json_object


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Parameters of sampling; worker/engine/requests/sampling.py explains them. None is off."""

    max_tokens: int = 256
    must_fit: bool = False  # the client asked for max_tokens: a context too short for it refuses the request
    temperature: float = 0.7
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    min_tokens: int = 0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()  # (token id, value added to its logit)
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    n: int = 1
    best_of: int | None = None
    format: OutputFormat | None = None
    optimization: Optimization = Optimization.FULL

    @property
    def num_choices(self) -> int:
        """The number of outputs generated for each prompt."""
        return self.best_of or self.n

    def to_json(self) -> dict[str, Any]:
        """Return what differs from the defaults, as a JSON object that `from_json` reads back."""
        changed = {
            field.name: value
            for field in fields(self)
            if (value := getattr(self, field.name)) != field.default
        }
        for name in ("stop", "stop_token_ids"):
            if name in changed:
                changed[name] = list(changed[name])
        if self.logit_bias:
            changed["logit_bias"] = [list(pair) for pair in self.logit_bias]
        if self.format is not None:
            changed["format"] = {"kind": self.format.kind.value, "source": self.format.source}
        if "optimization" in changed:
            changed["optimization"] = self.optimization.value
        return changed

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        """Rebuild the parameters that `to_json` wrote."""
        known = dict(value)
        for name in ("stop", "stop_token_ids"):
            known[name] = tuple(known.get(name, ()))
        known["logit_bias"] = tuple((token, bias) for token, bias in known.get("logit_bias", ()))
        if found := known.get("format"):
            known["format"] = OutputFormat(FormatKind(found["kind"]), found["source"])
        if "optimization" in known:
            known["optimization"] = Optimization(known["optimization"])
        return cls(**known)
