"""Defines the sampling fields that every route takes, and turns them into SamplingParams."""

import re
from dataclasses import replace
from functools import lru_cache
from typing import Annotated, Any

from pydantic import Field, Tag

from api.errors import InvalidInputError
from api.inputs.checkpoint import Checkpoint
from api.inputs.formats import FormatFields, to_format
from api.inputs.schema import NonEmptyText, one_of, text_or_list
from worker.values.sampling import RANGES, ParameterError, SamplingParams

MAX_STOP_STRINGS = 16
TOKEN_ID = re.compile("-?[0-9]{1,10}")
# Parameters that have a field of the same name and meaning.
PLAIN_FIELDS = SamplingParams.__dataclass_fields__.keys() - {
    "format", "logprobs", "must_fit", "optimization", "parsing", "prompt_logprobs", "thinking_budget",
}  # fmt: skip

MaxTokens = Annotated[
    int,
    RANGES["max_tokens"],
    Field(
        description="Most tokens to generate, which with the prompt must fit the model's context. Where it is"
        " left out, the context ends what would be longer.",
    ),
]
Temperature = Annotated[float, RANGES["temperature"], Field(allow_inf_nan=False, description="0 is greedy.")]
TopP = Annotated[float, RANGES["top_p"], Field(allow_inf_nan=False)]
TopK = Annotated[int, RANGES["top_k"], Field(description="0 is off.")]
MinP = Annotated[float, RANGES["min_p"], Field(allow_inf_nan=False)]
StopString = Annotated[NonEmptyText, Field(max_length=256)]
Stop = Annotated[
    Annotated[StopString, Tag("text")]
    | Annotated[list[StopString], Field(max_length=MAX_STOP_STRINGS), Tag("list")],
    one_of("a string or a list of strings", text_or_list),
]
Seed = Annotated[int, Field(ge=-(2**63), lt=2**63, description="The same seed gives the same tokens.")]
RepetitionPenalty = Annotated[float, RANGES["repetition_penalty"], Field(allow_inf_nan=False)]
FrequencyPenalty = Annotated[float, RANGES["frequency_penalty"], Field(allow_inf_nan=False)]
PresencePenalty = Annotated[float, RANGES["presence_penalty"], Field(allow_inf_nan=False)]
TokenId = Annotated[int, Field(ge=0, lt=2**31)]
Bias = Annotated[float, RANGES["logit_bias"], Field(allow_inf_nan=False)]
NumLogprobs = Annotated[
    int,
    RANGES["logprobs"],
    Field(description="Likeliest tokens to report beside each; 0: its own only."),
]
NumChoices = Annotated[int, RANGES["n"]]


class CommonSamplingFields(FormatFields):
    """The sampling fields that all routes share; `logprobs` differs between them."""

    max_tokens: MaxTokens | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    min_p: MinP | None = None
    seed: Seed | None = None
    stop: Stop | None = None
    stop_token_ids: Annotated[list[TokenId], Field(max_length=128)] | None = None
    ignore_eos: bool | None = None
    min_tokens: Annotated[int, RANGES["min_tokens"]] | None = None
    truncate_prompt_tokens: Annotated[int, RANGES["truncate_prompt_tokens"]] | None = Field(
        default=None,
        description="Keep only so many tokens of the prompt, its last ones; -1: as many as leave room for"
        " max_tokens.",
    )
    include_stop_str_in_output: bool | None = Field(
        default=None, description="Cut the output after what stopped it, not before."
    )
    no_stop_trim: bool | None = Field(
        default=None, description="SGLang's name of `include_stop_str_in_output`."
    )
    skip_special_tokens: bool | None = Field(
        default=None, description="false: the output's text has the tokenizer's special tokens, too."
    )
    repetition_penalty: RepetitionPenalty | None = None
    frequency_penalty: FrequencyPenalty | None = None
    presence_penalty: PresencePenalty | None = None
    logit_bias: Annotated[dict[str, Bias], Field(max_length=1024)] | None = Field(
        default=None, description="What is added to a token's logit, by token id."
    )
    prompt_logprobs: NumLogprobs | None = None
    n: NumChoices | None = None
    best_of: NumChoices | None = Field(
        default=None, description="Generate so many and keep the `n` with the highest mean logprob."
    )

    @property
    def num_logprobs(self) -> int | None:
        """The number of most likely tokens to report beside each token; None: no logprobs at all."""
        return None

    @property
    def num_prompt_logprobs(self) -> int | None:
        """The number of most likely tokens to report beside each token of the prompt; None: no logprobs."""
        return self.prompt_logprobs


class SamplingFields(CommonSamplingFields):
    """The sampling fields. A field that is left out has the batch's value, or the default."""

    logprobs: NumLogprobs | None = None

    @property
    def num_logprobs(self) -> int | None:
        """The number of most likely tokens to report beside each token; None: no logprobs at all."""
        return self.logprobs


def to_params(
    fields: CommonSamplingFields, defaults: SamplingParams, checkpoint: Checkpoint, path: str = ""
) -> SamplingParams:
    """Return `defaults` changed by the fields that are set, checked against the model.

    Raises:
        InvalidInputError: a field is wrong, or two conflict; `param` is the field's name after `path`.

    """
    changes: dict[str, Any] = {
        name: value
        for name in fields.model_fields_set
        if name in PLAIN_FIELDS and (value := getattr(fields, name)) is not None
    }
    counts = (("logprobs", fields.num_logprobs), ("prompt_logprobs", fields.num_prompt_logprobs))
    changes |= {name: count for name, count in counts if count is not None}
    if "max_tokens" in changes:
        changes["must_fit"] = True
    if "stop" in changes:
        stop = changes["stop"]
        changes["stop"] = (stop,) if isinstance(stop, str) else tuple(stop)
    if "stop_token_ids" in changes:
        changes["stop_token_ids"] = tuple(changes["stop_token_ids"])
    if "logit_bias" in changes:
        changes["logit_bias"] = _to_biases(changes["logit_bias"], path)
    if fields.no_stop_trim is not None:
        changes.setdefault("include_stop_str_in_output", fields.no_stop_trim)
    found = to_format(fields, checkpoint, lambda name, problem: refusal(path, name, problem))
    if not changes and found is None:
        params = defaults
    elif found is not None:
        params = replace(defaults, **changes, format=found[0])
    elif defaults.format is not None:  # a schema can be long, so it is in no key of this cache
        params = replace(defaults, **changes)
    else:
        params = _changed(defaults, frozenset(changes.items()))
    _check(params, checkpoint, path)
    return params


# The lines of a file mostly have the same parameters: they share one object.
@lru_cache(256)
def _changed(defaults: SamplingParams, changes: frozenset[tuple[str, Any]]) -> SamplingParams:
    return replace(defaults, **dict(changes))


def _to_biases(given: dict[str, float], path: str) -> tuple[tuple[int, float], ...]:
    for token in given:
        if not TOKEN_ID.fullmatch(token):
            raise refusal(path, "logit_bias", f"its keys must be token ids, but {token[:20]!r} is not one")
    return tuple((int(token), float(bias)) for token, bias in given.items())


def _check(params: SamplingParams, checkpoint: Checkpoint, path: str) -> None:
    try:
        params.check_conflicts()
    except ParameterError as error:
        raise refusal(path, error.name, error.problem) from error
    if (params.truncate_prompt_tokens or 0) < 0 and params.max_tokens >= checkpoint.max_model_len:
        raise refusal(
            path,
            "truncate_prompt_tokens",
            "-1 leaves room for max_tokens; send a max_tokens below the context",
        )
    if not (params.logit_bias or params.stop_token_ids):
        return
    most = checkpoint.vocab_size - 1
    for name, token_ids in (
        ("logit_bias", [token for token, _ in params.logit_bias]),
        ("stop_token_ids", params.stop_token_ids),
    ):
        for token in token_ids:
            if not 0 <= token <= most:
                raise refusal(path, name, f"token id {token} is not in the vocabulary, 0 to {most}")


def refusal(path: str, name: str, message: str) -> InvalidInputError:
    """Return the error for a field below `path`."""
    param = f"{path}.{name}" if path else name
    return InvalidInputError(f"{param}: {message}", param=param)
