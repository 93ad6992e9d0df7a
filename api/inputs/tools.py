"""Defines the fields that name tools and their calls, which every face that takes messages shares."""

import json
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, JsonValue, Tag

from api.inputs.schema import JsonObject, NonEmptyText, Schema, Text, one_of, text_or_object
from api.parsing.grammars import CallableTool

MAX_TOOLS = 128
FunctionName = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[a-zA-Z0-9_.-]+$")]


def _function(kind: object) -> object:
    if isinstance(kind, str) and kind != "function":
        raise ValueError(f"{kind[:50]!r} is not supported by this server; only `function` is")
    return kind


IsFunction = Annotated[Literal["function"], BeforeValidator(_function)]


class FunctionDefinition(Schema):
    """A function that the model may call."""

    name: FunctionName
    description: Text | None = None
    parameters: JsonObject | None = Field(
        default=None, description="JSON schema of its arguments, an object. Default: any object."
    )
    strict: bool | None = Field(
        default=None,
        description="With `tool_choice: auto`, calls fit the schema too, where the model's format allows it."
        " With `required`, or a named function, they always do.",
    )

    def for_template(self) -> dict[str, Any]:
        """Return the definition as chat templates take it."""
        return {
            "type": "function",
            "function": {
                "name": self.name,
                "description": self.description or "",
                "parameters": self.parameters or {"type": "object", "properties": {}},
            },
        }

    def for_grammar(self) -> CallableTool:
        """Return the definition as grammars take it."""
        return CallableTool(self.name, self.parameters or {}, bool(self.strict))


class ToolDefinition(Schema):
    """A tool that the model may call."""

    type: IsFunction
    function: FunctionDefinition


class FunctionChoice(Schema):
    """The name of a function that must be called."""

    name: FunctionName


class NamedToolChoice(Schema):
    """The tool that must be called."""

    type: IsFunction
    function: FunctionChoice


ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("text")] | Annotated[NamedToolChoice, Tag("object")],
    one_of("`none`, `auto`, `required` or a tool", text_or_object),
]


class CalledFunction(Schema):
    """A function that was called."""

    name: NonEmptyText
    arguments: Text = Field(description="JSON, as the model wrote it.")

    def for_template(self) -> dict[str, Any]:
        """Return the call as chat templates take it, with arguments that are an object where they are one."""
        try:
            arguments = json.loads(self.arguments or "{}")
        except (ValueError, RecursionError):
            arguments = self.arguments
        return {"name": self.name, "arguments": arguments if isinstance(arguments, dict) else self.arguments}


class ToolCall(Schema):
    """A call that an earlier answer made."""

    id: NonEmptyText
    type: IsFunction = "function"
    function: CalledFunction
    index: JsonValue = None

    def for_template(self) -> dict[str, Any]:
        """Return the call as chat templates take it."""
        return {"id": self.id, "type": "function", "function": self.function.for_template()}


ToolCalls = Annotated[list[ToolCall], Field(max_length=MAX_TOOLS)]


Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class ToolEndpoint(Schema):
    """Where the calls of a conversation are made, and how far it may go."""

    url: NonEmptyText = Field(description="Each call is posted there, checked and signed like a callback.")
    max_turns: Annotated[int, Field(ge=1, lt=2**31)] = Field(
        default=8, description="Most outputs of the model. The calls of the last one are not made."
    )
    forced_turns: Annotated[int, Field(ge=1, lt=2**31)] | None = Field(
        default=None,
        description="How many turns must call, with `tool_choice: required` or a named function; later ones"
        " may. Default: 1.",
    )
    timeout_seconds: Seconds = Field(default=15.0, description="Of one attempt at a call.")
    total_seconds: Annotated[Seconds, Field(le=86_400)] = Field(
        default=300.0, description="Of all calls of the conversation together."
    )
    on_failure: Literal["fail", "tell_model"] = Field(
        default="fail",
        description="What happens if the endpoint cannot be reached or does not answer: the request fails, or"
        " the model reads the error in the place of the answer.",
    )


OwnToolEndpoint = Annotated[
    ToolEndpoint | None,
    Field(description="Of a request of a batch: makes the calls, until the model has its answer."),
]


class ToolFields(Schema):
    """The fields that offer tools."""

    tools: Annotated[list[ToolDefinition], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: ToolChoice | None = Field(
        default=None, description="Default: `auto` with tools. `required`, or a named tool, forces a call."
    )
    parallel_tool_calls: bool | None = Field(
        default=None, description="Whether an answer may call several tools. Default: true."
    )
    tool_endpoint: OwnToolEndpoint = None
