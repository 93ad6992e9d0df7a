"""Defines the sampling fields that every route takes, and turns them into SamplingParams."""

import json
import re
from dataclasses import replace
from functools import lru_cache
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, Tag, WithJsonSchema
from pydantic_core import from_json

from api.errors import InvalidInputError
from api.inputs.checkpoint import Checkpoint
from api.inputs.schema import JsonObject, NonEmptyText, Schema, Text, one_of, text_or_list
from worker.values.grammar import MAX_SOURCE_CHARACTERS, Grammar, GrammarError
from worker.values.sampling import RANGES, FormatKind, OutputFormat, ParameterError, SamplingParams

MAX_STOP_STRINGS = 16
TOKEN_ID = re.compile("-?[0-9]{1,10}")
FORMAT_FIELDS = ("response_format", "guided_json", "guided_regex", "guided_choice")
# Parameters that have a field of the same name and meaning.
PLAIN_FIELDS = SamplingParams.__dataclass_fields__.keys() - {
    "format", "logprobs", "must_fit", "optimization", "parsing", "skip_special_tokens",
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


def _to_object(value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        return from_json(value, allow_inf_nan=False)
    except ValueError as error:
        raise ValueError("must be a JSON schema, as an object or as a string") from error


# As vLLM's clients send it: an object, or its text.
GuidedJson = Annotated[
    JsonObject,
    BeforeValidator(_to_object),
    WithJsonSchema({"anyOf": [{"type": "object"}, {"type": "string"}]}),
]


class JsonSchemaFormat(Schema):
    """A schema with the name that OpenAI's clients give it."""

    name: Text | None = None
    description: Text | None = None
    json_schema: JsonObject = Field(alias="schema")
    strict: bool | None = Field(default=None, description="Outputs always fit, whatever this says.")


class TextResponse(Schema):
    """An output of any text."""

    type: Literal["text"]


class JsonObjectResponse(Schema):
    """An output that is any JSON object."""

    type: Literal["json_object"]


class JsonSchemaResponse(Schema):
    """An output that is JSON, valid by a schema."""

    type: Literal["json_schema"]
    json_schema: JsonSchemaFormat


ResponseFormat = Annotated[
    TextResponse | JsonObjectResponse | JsonSchemaResponse, Field(discriminator="type")
]


class CommonSamplingFields(Schema):
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
    response_format: ResponseFormat | None = None
    guided_json: GuidedJson | None = Field(
        default=None, description="The output is JSON that is valid by this schema, an object or its text."
    )
    guided_regex: Text | None = Field(
        default=None, description="The output is what this regular expression matches as a whole."
    )
    guided_choice: Annotated[list[Text], Field(min_length=1, max_length=1024)] | None = Field(
        default=None, description="The output is one of these."
    )

    @property
    def num_logprobs(self) -> int | None:
        """The number of most likely tokens to report beside each token; None: no logprobs at all."""
        return None


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
        for name in PLAIN_FIELDS & fields.model_fields_set
        if (value := getattr(fields, name)) is not None
    }
    if fields.num_logprobs is not None:
        changes["logprobs"] = fields.num_logprobs
    if "max_tokens" in changes:
        changes["must_fit"] = True
    if "stop" in changes:
        stop = changes["stop"]
        changes["stop"] = (stop,) if isinstance(stop, str) else tuple(stop)
    if "stop_token_ids" in changes:
        changes["stop_token_ids"] = tuple(changes["stop_token_ids"])
    if "logit_bias" in changes:
        changes["logit_bias"] = _to_biases(changes["logit_bias"], path)
    found = _to_format(fields, checkpoint, path)
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


def _to_format(
    fields: CommonSamplingFields, checkpoint: Checkpoint, path: str
) -> tuple[OutputFormat | None] | None:
    """Return the format in a tuple, (None,) for free text; None if no format field is set."""
    if fields.model_fields_set.isdisjoint(FORMAT_FIELDS):
        return None
    named = [name for name in FORMAT_FIELDS if getattr(fields, name) is not None]
    if not named:
        return None
    if len(named) > 1:
        raise refusal(path, named[1], f"cannot be combined with {named[0]}")
    response = fields.response_format
    found: OutputFormat | None = None
    if fields.guided_regex is not None:
        found = OutputFormat(FormatKind.REGEX, fields.guided_regex)
    elif fields.guided_choice is not None:
        found = OutputFormat(FormatKind.CHOICE, tuple(fields.guided_choice))
    elif fields.guided_json is not None:
        found = _schema_format(fields.guided_json)
    elif isinstance(response, JsonSchemaResponse):
        found = _schema_format(response.json_schema.json_schema)
    elif isinstance(response, JsonObjectResponse):
        found = OutputFormat(FormatKind.JSON_OBJECT)
    if found is not None and (problem := _problem(found, checkpoint)):
        name = "response_format.json_schema.schema" if named[0] == "response_format" else named[0]
        raise refusal(path, name, problem)
    return (found,)


def _schema_format(schema: JsonObject) -> OutputFormat:
    # Kept as text: an object may lose the order of its keys, in which the output has them.
    return OutputFormat(FormatKind.JSON_SCHEMA, json.dumps(schema, ensure_ascii=False))


def _problem(found: OutputFormat, checkpoint: Checkpoint) -> str:
    source = found.source if isinstance(found.source, str) else json.dumps(found.source)
    # Checked before it is compiled and cached, because the cache holds it in memory.
    if len(source) > MAX_SOURCE_CHARACTERS:
        return f"has {len(source)} characters; the limit is {MAX_SOURCE_CHARACTERS}"
    return _compile_problem(checkpoint, found)


@lru_cache(256)
def _compile_problem(checkpoint: Checkpoint, found: OutputFormat) -> str:
    try:
        Grammar.of(found.kind, found.source).check(checkpoint.vocabulary)
    except GrammarError as error:
        return str(error).partition(": ")[2]
    return ""


def _check(params: SamplingParams, checkpoint: Checkpoint, path: str) -> None:
    try:
        params.check_conflicts()
    except ParameterError as error:
        raise refusal(path, error.name, error.problem) from error
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
