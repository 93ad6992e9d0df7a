"""Defines the bodies that Anthropic's clients send.

Unsupported fields are refused; fields that change no output are accepted.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, Tag

from api.batches.experiments import ExperimentFields
from api.batches.schemas import Window
from api.inputs.foreign import Ignored, Unsupported
from api.inputs.sampling import MAX_STOP_STRINGS, StopString, Temperature, TopK, TopP
from api.inputs.schema import JsonObject, NonEmptyText, Priority, Schema, Text, one_of, text_or_list
from api.inputs.tools import OwnToolEndpoint
from worker.values.sampling import RANGES

# The kinds of Anthropic's blocks that no model here can read.
UNREADABLE = {
    "image": "images",
    "document": "documents",
    "search_result": "search results",
    "container_upload": "files",
}
CustomId = Annotated[NonEmptyText, Field(max_length=64, pattern="^[a-zA-Z0-9_-]{1,64}$")]
WindowOfBatch = Annotated[
    Window, Field(description="What is not done by then expires: 90s, 30m, 24h, 7d. Not of Anthropic's API.")
]


def _readable(block: Any) -> Any:
    if isinstance(block, dict) and isinstance(kind := block.get("type"), str):
        if kind in UNREADABLE:
            raise ValueError(f"{UNREADABLE[kind]} are not supported; send text only")
        if kind.endswith("_tool_result") or kind == "server_tool_use":
            raise ValueError(f"{kind} is of a tool that Anthropic's own servers run, which is not supported")
    return block


class MessageText(Schema):
    """A piece of text."""

    type: Literal["text"]
    text: Text
    cache_control: Ignored = None
    citations: Unsupported = None


class PastThinking(Schema):
    """The reasoning of an earlier answer."""

    type: Literal["thinking"]
    thinking: Text
    signature: Ignored = None


class RedactedThinking(Schema):
    """The hidden reasoning of an earlier answer, which no model here has made; it is left out."""

    type: Literal["redacted_thinking"]
    data: Ignored = None


class PastToolUse(Schema):
    """A call of a tool in an earlier answer."""

    type: Literal["tool_use"]
    id: NonEmptyText
    name: NonEmptyText
    input: JsonObject
    cache_control: Ignored = None
    caller: Ignored = None
    toolset_name: Ignored = None


ResultPart = Annotated[MessageText, BeforeValidator(_readable)]
Texts = Annotated[
    Annotated[Text, Tag("text")] | Annotated[list[ResultPart], Tag("list")],
    one_of("a string or a list of text blocks", text_or_list),
]


class PastToolResult(Schema):
    """What a tool has answered."""

    type: Literal["tool_result"]
    tool_use_id: NonEmptyText
    content: Texts = ""
    is_error: bool | None = None
    cache_control: Ignored = None
    toolset_name: Ignored = None


Block = Annotated[
    MessageText | PastThinking | RedactedThinking | PastToolUse | PastToolResult,
    Field(discriminator="type"),
    BeforeValidator(_readable),
]
Blocks = Annotated[
    Annotated[Text, Tag("text")] | Annotated[list[Block], Tag("list")],
    one_of("a string or a list of blocks", text_or_list),
]


class MessageTurn(Schema):
    """One turn of a conversation."""

    role: Literal["user", "assistant", "system"]
    content: Blocks


class MessageTool(Schema):
    """A tool that the model may call."""

    name: NonEmptyText
    description: Text | None = None
    input_schema: JsonObject
    type: Annotated[Literal["custom"] | None, Field(description="Tools of Anthropic's own are not here.")] = (
        None
    )
    strict: bool | None = None
    cache_control: Ignored = None
    input_examples: Ignored = None
    eager_input_streaming: Ignored = None
    defer_loading: Unsupported = None
    allowed_callers: list[Literal["direct"]] | None = None


class MessageToolChoice(Schema):
    """Whether the model calls a tool: as it likes, always some, always this one, or never."""

    type: Literal["auto", "any", "tool", "none"]
    name: NonEmptyText | None = Field(default=None, description="Of the type `tool`.")
    disable_parallel_tool_use: bool | None = None


class MessageThinking(Schema):
    """Whether the model reasons before it answers, if it is one that can."""

    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    budget_tokens: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    display: Ignored = None


class MessageFormat(Schema):
    """The schema of the answer."""

    type: Literal["json_schema"]
    json_schema: JsonObject = Field(alias="schema")


class OutputConfig(Schema):
    """The form of the answer, and how hard the model is to think about it."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: MessageFormat | None = None


class CountedMessage(Schema):
    """The fields that make a prompt."""

    model: NonEmptyText
    messages: Annotated[list[MessageTurn], Field(min_length=1)]
    system: Texts | None = None
    tools: list[MessageTool] | None = None
    tool_choice: MessageToolChoice | None = None
    thinking: MessageThinking | None = None
    output_config: OutputConfig | None = None
    cache_control: Ignored = None
    context_management: Unsupported = None
    mcp_servers: Unsupported = None
    speed: Ignored = None


class NewMessage(CountedMessage):
    """A request for the next message of a conversation."""

    max_tokens: Annotated[
        int,
        RANGES["max_tokens"],
        Field(description="Most tokens to generate. The context ends what would be longer."),
    ]
    stop_sequences: Annotated[list[StopString], Field(max_length=MAX_STOP_STRINGS)] | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    stream: bool | None = None
    metadata: Ignored = None
    service_tier: Ignored = None
    inference_geo: Ignored = None
    diagnostics: Ignored = None
    container: Unsupported = None
    tool_endpoint: OwnToolEndpoint = None


class MessageBatchRequest(Schema):
    """One message of a batch."""

    custom_id: CustomId
    params: Annotated[
        JsonObject,
        Field(
            description="A body of /v1/messages, without `stream`. If it is wrong, its result is `errored`,"
            " and the others run.",
        ),
    ]


class NewMessageBatch(Schema):
    """Messages to generate as a batch."""

    requests: Annotated[list[MessageBatchRequest], Field(min_length=1)]
    callback_url: NonEmptyText | None = Field(
        default=None,
        description="Called once, signed, when the batch has ended. Not of Anthropic's API.",
    )
    completion_window: WindowOfBatch = "24h"
    priority: Priority = 0
    experiment: ExperimentFields | None = None


def joined(content: str | Sequence[MessageText]) -> str:
    """Return a text that may have come in pieces."""
    return content if isinstance(content, str) else "\n".join(part.text for part in content)
