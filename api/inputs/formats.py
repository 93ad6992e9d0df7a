"""Defines the fields that ask for an output's form, under the names of OpenAI, vLLM and SGLang."""

import json
from collections.abc import Callable
from functools import lru_cache
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema
from pydantic_core import from_json

from api.errors import InvalidInputError
from api.inputs.checkpoint import Checkpoint
from api.inputs.foreign import Ignored, Unsupported
from api.inputs.schema import JsonObject, Schema, Text
from worker.values.ebnf import to_regex
from worker.values.grammar import MAX_SOURCE_CHARACTERS, Grammar, GrammarError
from worker.values.sampling import FormatKind, OutputFormat


def _to_object(value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        return from_json(value, allow_inf_nan=False)
    except ValueError as error:
        raise ValueError("must be a JSON object, or the text of one") from error


# As vLLM's and SGLang's clients send it: an object, or its text.
JsonSchemaOrText = Annotated[
    JsonObject,
    BeforeValidator(_to_object),
    WithJsonSchema({"anyOf": [{"type": "object"}, {"type": "string"}]}),
    Field(description="The output is JSON that is valid by this schema, an object or its text."),
]
Regex = Annotated[Text, Field(description="The output is what this regular expression matches as a whole.")]
Options = Annotated[
    list[Text], Field(min_length=1, max_length=1024, description="The output is one of these.")
]
ContextFree = Annotated[
    Text,
    Field(
        description="The output is what this grammar derives: EBNF with a rule `root`, of which no rule needs"
        " itself."
    ),
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
    """An output that is any JSON object, or one that is valid by a schema."""

    type: Literal["json_object"]
    json_schema: JsonObject | None = Field(default=None, alias="schema")


class JsonSchemaResponse(Schema):
    """An output that is JSON, valid by a schema."""

    type: Literal["json_schema"]
    json_schema: JsonSchemaFormat


ResponseFormat = Annotated[
    TextResponse | JsonObjectResponse | JsonSchemaResponse, Field(discriminator="type")
]


class StructuredOutputs(Schema):
    """The form of an output, as newer clients of vLLM send it: one of its fields."""

    json_schema: JsonSchemaOrText | None = Field(default=None, alias="json")
    regex: Regex | None = None
    choice: Options | None = None
    grammar: ContextFree | None = None
    json_object: bool | None = None
    structural_tag: Unsupported = None
    disable_any_whitespace: Unsupported = None
    disable_additional_properties: Unsupported = None
    whitespace_pattern: Unsupported = None
    disable_fallback: Ignored = None


class FormatFields(Schema):
    """The fields that ask for an output's form; a request has at most one."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: JsonSchemaOrText | None = None
    guided_regex: Regex | None = None
    guided_choice: Options | None = None
    guided_grammar: ContextFree | None = None
    # SGLang's names.
    json_schema: JsonSchemaOrText | None = None
    regex: Regex | None = None
    ebnf: ContextFree | None = None


FIELDS = tuple(FormatFields.model_fields)
# What each field asks for; a grammar becomes a regular expression.
KINDS = {
    "guided_json": FormatKind.JSON_SCHEMA,
    "guided_regex": FormatKind.REGEX,
    "guided_choice": FormatKind.CHOICE,
    "guided_grammar": FormatKind.REGEX,
    "json_schema": FormatKind.JSON_SCHEMA,
    "regex": FormatKind.REGEX,
    "ebnf": FormatKind.REGEX,
    "choice": FormatKind.CHOICE,
    "grammar": FormatKind.REGEX,
    "json_object": FormatKind.JSON_OBJECT,
}


def to_format(
    fields: FormatFields, checkpoint: Checkpoint, refuse: Callable[[str, str], InvalidInputError]
) -> tuple[OutputFormat | None] | None:
    """Return the format in a tuple, (None,) for free text; None if no format field is set.

    `refuse` makes the error for a field's name and what is wrong with it.

    Raises:
        InvalidInputError: several are set, or no engine could follow it.

    """
    if fields.model_fields_set.isdisjoint(FIELDS):
        return None
    named = [name for name in FIELDS if getattr(fields, name) is not None]
    if not named:
        return None
    if len(named) > 1:
        raise refuse(named[1], f"cannot be combined with {named[0]}")
    name, value = named[0], getattr(fields, named[0])
    kind: FormatKind | None
    if isinstance(value, StructuredOutputs):
        name, kind, value = _of_structured_outputs(value, refuse)
    elif name == "response_format":
        name, kind, value = _of_response_format(value)
    else:
        kind = KINDS[name]
    if kind is None:
        return (None,)
    try:
        found = OutputFormat(kind, _source(name, kind, value))
        check_format(found, checkpoint)
    except GrammarError as error:
        raise refuse(name, str(error).partition(": ")[2]) from error
    return (found,)


def _of_response_format(given: ResponseFormat) -> tuple[str, FormatKind | None, JsonObject | None]:
    name = "response_format"
    if isinstance(given, JsonSchemaResponse):
        return f"{name}.json_schema.schema", FormatKind.JSON_SCHEMA, given.json_schema.json_schema
    if isinstance(given, TextResponse):
        return name, None, None
    if given.json_schema is None:
        return name, FormatKind.JSON_OBJECT, None
    return f"{name}.schema", FormatKind.JSON_SCHEMA, given.json_schema


def _of_structured_outputs(
    given: StructuredOutputs, refuse: Callable[[str, str], InvalidInputError]
) -> tuple[str, FormatKind | None, Any]:
    fields = StructuredOutputs.model_fields
    named = {fields[name].alias or name: name for name in fields if name in KINDS}
    found = [alias for alias, name in named.items() if getattr(given, name) not in (None, False)]
    paths = [f"structured_outputs.{alias}" for alias in found]
    if len(found) > 1:
        raise refuse(paths[1], f"cannot be combined with {paths[0]}")
    if not found:
        return "structured_outputs", None, None
    name = named[found[0]]
    return paths[0], KINDS[name], getattr(given, name)


def _source(name: str, kind: FormatKind, value: Any) -> str | tuple[str, ...] | None:
    if kind is FormatKind.JSON_OBJECT:
        return None
    if kind is FormatKind.JSON_SCHEMA:
        # Kept as text: an object may lose the order of its keys, in which the output has them.
        return json.dumps(value, ensure_ascii=False)
    if kind is FormatKind.CHOICE:
        return tuple(value)
    return to_regex(value) if name.endswith(("grammar", "ebnf")) else str(value)


def check_format(found: OutputFormat, checkpoint: Checkpoint) -> None:
    """Raise GrammarError unless an output can have a format."""
    source = found.source if isinstance(found.source, str) else json.dumps(found.source)
    # Checked before it is compiled and cached, because the cache holds it in memory.
    if len(source) > MAX_SOURCE_CHARACTERS:
        raise GrammarError(
            f"{found.kind}: has {len(source)} characters; the limit is {MAX_SOURCE_CHARACTERS}"
        )
    if problem := _compile_problem(checkpoint, found):
        raise GrammarError(problem)


@lru_cache(256)
def _compile_problem(checkpoint: Checkpoint, found: OutputFormat) -> str:
    try:
        Grammar.of(found.kind, found.source).check(checkpoint.vocabulary)
    except GrammarError as error:
        return str(error)
    return ""
