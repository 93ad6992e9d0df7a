"""Define sampling parameters and their ranges, for the API, the store and the engine alike."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, Self

from annotated_types import Interval

from worker.values.parsing import Parsing
from worker.values.thinking import Thinking

LOGPROBS = Interval(ge=0, le=20)  # likeliest tokens that can be reported beside each
CHOICES = Interval(ge=1, le=128)  # of one prompt
PENALTY = Interval(ge=-2, le=2)
# Values that each parameter may have. The API's schemas and `SamplingParams.check` both use them.
RANGES: Mapping[str, Interval] = {
    "max_tokens": Interval(ge=0, lt=2**31),
    "temperature": Interval(ge=0, le=2),
    "top_p": Interval(gt=0, le=1),
    "top_k": Interval(ge=0, le=1_000_000),
    "min_p": Interval(ge=0, le=1),
    "min_tokens": Interval(ge=0),
    "thinking_budget": Interval(ge=0, lt=2**31),
    "truncate_prompt_tokens": Interval(ge=-1, lt=2**31),
    "repetition_penalty": Interval(gt=0, le=10),
    "frequency_penalty": PENALTY,
    "presence_penalty": PENALTY,
    "logit_bias": Interval(ge=-100, le=100),  # each value
    "logprobs": LOGPROBS,
    "prompt_logprobs": LOGPROBS,
    "n": CHOICES,
    "best_of": CHOICES,
}


class ParameterError(ValueError):
    """A parameter is out of its range, or conflicts with another; `name` is the parameter's."""

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(f"{name} {problem}")
        self.name = name
        self.problem = problem


class FormatKind(StrEnum):
    """Kind of constraint on an output's form."""

    JSON_OBJECT = "json_object"
    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    CHOICE = "choice"
    LARK = "lark"  # a grammar


class Optimization(StrEnum):
    """Measures that may make a request cheaper. Its tokens do not depend on them."""

    NONE = "none"  # alone in its Steps, nothing cached
    BASIC = "basic"  # batched with others
    FULL = "full"  # batched, and served by every cache there is


@dataclass(frozen=True, slots=True)
class OutputFormat:
    """Constraint on a whole output. `source`: a schema's text, a pattern or a list of options, by `kind`."""

    kind: FormatKind
    source: str | tuple[str, ...] | None = None  # None for json_object


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Parameters of sampling, as `SamplingParams(max_tokens=32, temperature=0)`; `check` judges them.

    Length: the output ends at `max_tokens`, or earlier when the model's context is full. With `must_fit`, a
    request whose prompt and `max_tokens` exceed the context is refused. `truncate_prompt_tokens` keeps only
    so many tokens of the prompt, its last ones; -1 keeps as many as leave room for `max_tokens`.

    Choice: `temperature=0` is greedy. `top_k=0`, `top_p=1` and `min_p=0` are off; they apply in that order,
    after the temperature. `seed=None` draws a random seed.

    End: `stop` strings and `stop_token_ids` end the output, which is cut before them, or after them with
    `include_stop_str_in_output`. `ignore_eos` ignores only the checkpoint's end tokens. `min_tokens`
    suppresses every end before that length, unless the `format` allows nothing else; an output that
    completes its `format` always ends.

    Text: `skip_special_tokens=False` writes the tokenizer's special tokens into the output's text.

    Logprobs: `logprobs` is the number of likeliest tokens reported beside each chosen one, from the model's
    own logits; `prompt_logprobs` is the same for each prompt token after the first. None reports nothing.

    Choices: `n` is their number. Each has a seed derived from `seed`; the first uses `seed` itself. `best_of`
    generates that many and keeps the `n` with the highest mean logprob, best first.

    Answer: `echo` repeats the prompt before each output. `return_token_ids` reports the ids of the tokens of
    the prompt and of each choice. `return_tokens_as_token_ids` spells tokens in logprobs as `token_id:17`.
    With `max_tokens=0` nothing is generated, so the request has to ask for `echo` or for `prompt_logprobs`.
    """

    max_tokens: int = 256
    must_fit: bool = False
    truncate_prompt_tokens: int | None = None
    temperature: float = 0.7
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    min_tokens: int = 0
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    repetition_penalty: float = 1.0  # on tokens of prompt and output; 1 is off
    frequency_penalty: float = 0.0  # on tokens of the output, for each occurrence
    presence_penalty: float = 0.0  # on tokens of the output, once
    logit_bias: tuple[tuple[int, float], ...] = ()  # (token id, value added to its logit)
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    n: int = 1
    best_of: int | None = None  # None: n
    format: OutputFormat | None = None
    thinking_budget: int | None = None  # most tokens of thoughts; then the engine ends them
    parsing: Parsing | None = None  # of the output, where it is answered; None: its text is the answer
    echo: bool = False
    return_token_ids: bool = False
    return_tokens_as_token_ids: bool = False
    optimization: Optimization = Optimization.FULL

    @property
    def thinking(self) -> Thinking | None:
        """The marks of the thoughts before the answer, which alone has the `format`; None: no thoughts."""
        return None if self.parsing is None else self.parsing.thinking

    @property
    def is_greedy(self) -> bool:
        """Return whether the most likely token is always chosen."""
        return self.temperature == 0

    @property
    def num_choices(self) -> int:
        """The number of outputs generated for each prompt."""
        return self.best_of or self.n

    def kept_prompt_tokens(self, num_tokens: int, max_model_len: int) -> int:
        """Return how many tokens of a prompt of `num_tokens` are kept, its last ones."""
        if self.truncate_prompt_tokens is None:
            return num_tokens
        most = self.truncate_prompt_tokens
        return min(num_tokens, max(1, max_model_len - self.max_tokens) if most < 0 else most)

    @property
    def needs_logprobs(self) -> bool:
        """Return whether the logprob of each chosen token is needed."""
        return self.logprobs is not None or self.num_choices > self.n

    @property
    def needs_prompt_token_ids(self) -> bool:
        """Return whether the result says which tokens the prompt became."""
        return self.return_token_ids or (self.echo and self.prompt_logprobs is not None)

    @property
    def repeats_prompt(self) -> bool:
        """Return whether the answer says something of its own prompt, so that none of another prompt fits."""
        return self.echo or self.return_token_ids or self.prompt_logprobs is not None

    @property
    def has_logit_rules(self) -> bool:
        """Return whether any option changes the logits before a token is chosen."""
        return bool(
            self.format is not None
            or self.logit_bias
            or self.min_tokens
            or self.repetition_penalty != 1
            or self.frequency_penalty
            or self.presence_penalty
        )

    def check(self) -> None:
        """Raise ParameterError for the first parameter that is out of range or conflicts with another."""
        for name, allowed in RANGES.items():
            value = getattr(self, name)
            values = [bias for _, bias in value] if name == "logit_bias" else [value]
            for one in values:
                if one is not None and not _is_within(one, allowed):
                    raise ParameterError(name, f"is out of range: {one!r}")
        if not all(self.stop):
            raise ParameterError("stop", "has an empty text")
        self.check_conflicts()

    def check_conflicts(self) -> None:
        """Raise ParameterError if two parameters, each within its range, conflict."""
        if self.best_of is not None and self.best_of < self.n:
            raise ParameterError("best_of", "must be at least n")
        if self.min_tokens > self.max_tokens:
            raise ParameterError("min_tokens", "must be at most max_tokens")
        if self.truncate_prompt_tokens == 0:
            raise ParameterError("truncate_prompt_tokens", "must be -1, or at least 1")
        if not (self.max_tokens or self.echo or self.prompt_logprobs is not None):
            raise ParameterError("max_tokens", "must be at least 1, unless echo or prompt_logprobs is set")

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
            source = self.format.source
            changed["format"] = {
                "kind": self.format.kind.value,
                "source": list(source) if isinstance(source, tuple) else source,
            }
        if "optimization" in changed:
            changed["optimization"] = self.optimization.value
        if self.parsing is not None:
            changed["parsing"] = self.parsing.to_json()
        return changed

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        """Rebuild the parameters that `to_json` wrote."""
        known = dict(value)
        for name in ("stop", "stop_token_ids"):
            known[name] = tuple(known.get(name, ()))
        known["logit_bias"] = tuple((token, bias) for token, bias in known.get("logit_bias", ()))
        if found := known.get("format"):
            source = found["source"]
            if isinstance(source, list):
                source = tuple(source)
            elif isinstance(source, dict):  # of a batch that an early version stored
                source = json.dumps(source)
            known["format"] = OutputFormat(FormatKind(found["kind"]), source)
        if found := known.get("parsing"):
            known["parsing"] = Parsing.from_json(found)
        if "optimization" in known:
            known["optimization"] = Optimization(known["optimization"])
        return cls(**known)


def _is_within(value: Any, allowed: Interval) -> bool:
    """Return whether a number is within an interval; NaN is in none."""
    return (
        (allowed.ge is None or value >= allowed.ge)
        and (allowed.gt is None or value > allowed.gt)
        and (allowed.le is None or value <= allowed.le)
        and (allowed.lt is None or value < allowed.lt)
    )
