"""Defines the body of a response, and says what of OpenAI's is not there."""

from typing import Annotated, Literal, TypeVar

from pydantic import BeforeValidator, Field, JsonValue, Tag

from api.inputs.foreign import Ignored, Unsupported
from api.inputs.formats import JsonObjectResponse, TextResponse
from api.inputs.labels import Metadata
from api.inputs.reasoning import ThinkingBudget
from api.inputs.sampling import (
    FrequencyPenalty,
    MaxTokens,
    MinP,
    NumLogprobs,
    PresencePenalty,
    RepetitionPenalty,
    Seed,
    Stop,
    Temperature,
    TopK,
    TopP,
)
from api.inputs.schema import (
    JsonObject,
    NonEmptyText,
    Schema,
    Text,
    TimeoutSeconds,
    one_of,
    text_or_object,
)
from api.inputs.tools import (
    MAX_TOOLS,
    FunctionDefinition,
    FunctionName,
    IsFunction,
    OwnToolEndpoint,
)
from api.openai.bodies import OwnPriority
from api.responses.items import Input

Value = TypeVar("Value")
# A field that changes no output, and that the response repeats.
OfNoEffect = Annotated[Value | None, Field(description="Repeated in the response, and of no effect.")]
LOGPROBS = "message.output_text.logprobs"
# What may be asked for beside the output. All but the first ask for parts of items that no response here has.
Includable = Literal[
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
]
# The fields that a response repeats.
REPEATED = {
    "model",
    "instructions",
    "previous_response_id",
    "store",
    "background",
    "service_tier",
    "metadata",
}
REPEATED |= {"max_output_tokens", "temperature", "top_p", "top_logprobs", "text", "reasoning", "truncation"}
REPEATED |= {"user", "safety_identifier", "prompt_cache_key", "max_tool_calls", "parallel_tool_calls"}
REPEATED |= {"tools", "tool_choice"}
# Parameters that a chat takes under the same name.
SAMPLING = {"temperature", "top_p", "top_k", "min_p", "seed", "stop", "ignore_eos", "min_tokens"}
SAMPLING |= {"repetition_penalty", "frequency_penalty", "presence_penalty"}
SAMPLING |= {"chat_template_kwargs", "thinking_budget"}


class JsonSchemaText(Schema):
    """An output that is JSON, valid by a schema."""

    type: Literal["json_schema"]
    name: Text | None = None
    description: Text | None = None
    json_schema: JsonObject = Field(alias="schema")
    strict: bool | None = Field(default=None, description="Outputs always fit, whatever this says.")


class TextOptions(Schema):
    """The form of the output's text."""

    format: Annotated[
        TextResponse | JsonObjectResponse | JsonSchemaText | None, Field(discriminator="type")
    ] = None
    verbosity: Literal["low", "medium", "high"] | None = None


class Reasoning(Schema):
    """How much the model thinks before it answers."""

    effort: Text | None = None
    summary: Ignored = None
    generate_summary: Ignored = None
    context: Ignored = None
    mode: Ignored = None


class FunctionTool(FunctionDefinition):
    """A function that the model may call."""

    type: IsFunction
    defer_loading: Ignored = None
    allowed_callers: Ignored = None
    output_schema: Ignored = None


def _only_functions(value: object) -> object:
    kind = value.get("type") if isinstance(value, dict) else None
    if isinstance(kind, str) and kind != "function":
        raise ValueError(
            f"tools of the type {kind[:40]!r} are not supported; define a function, and run it yourself"
        )
    return value


class ChosenFunction(Schema):
    """The function that must be called."""

    type: IsFunction
    name: FunctionName


ResponseToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("text")] | Annotated[ChosenFunction, Tag("object")],
    one_of("`none`, `auto`, `required` or a function", text_or_object),
]


class ResponseStreamOptions(Schema):
    """Options of a stream."""

    include_obfuscation: Ignored = None


class ResponseBody(Schema):
    """A request for a response."""

    model: NonEmptyText
    input: Input
    instructions: Text | None = Field(
        default=None, description="A system message before the conversation; not carried over to the next."
    )
    previous_response_id: Annotated[NonEmptyText, Field(max_length=64)] | None = Field(
        default=None, description="A stored response whose conversation this one continues."
    )
    store: bool | None = Field(
        default=None, description="Whether it can be retrieved later; if false, nothing of it is kept."
    )
    background: bool | None = Field(
        default=None,
        description="Answer at once and run it as a batch of one, which outlives every process. Its `status`"
        " tells when it has ended.",
    )
    stream: bool | None = None
    stream_options: ResponseStreamOptions | None = None
    service_tier: Literal["auto", "default", "flex", "priority"] | None = Field(
        default=None,
        description="`flex` waits its turn among the tenant's batches; a stream of it comes at the end, in"
        " one piece. All others run at once, before all batches, and are answered as `default`.",
    )
    max_output_tokens: MaxTokens | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    min_p: MinP | None = None
    seed: Seed | None = None
    stop: Stop | None = None
    ignore_eos: bool | None = None
    min_tokens: Annotated[int, Field(ge=0)] | None = None
    repetition_penalty: RepetitionPenalty | None = None
    frequency_penalty: FrequencyPenalty | None = None
    presence_penalty: PresencePenalty | None = None
    top_logprobs: NumLogprobs | None = None
    include: Annotated[list[Includable], Field(max_length=16)] | None = Field(
        default=None,
        description=f"`{LOGPROBS}` gives log-probabilities. The others are accepted, and of no effect.",
    )
    text: TextOptions | None = None
    reasoning: Reasoning | None = None
    truncation: Literal["auto", "disabled"] | None = Field(
        default=None,
        description="`auto` drops the oldest turns of a conversation that does not fit the model's context.",
    )
    metadata: Metadata | None = None
    chat_template_kwargs: JsonObject | None = Field(
        default=None, description="Variables of the model's chat template, such as `enable_thinking`."
    )
    thinking_budget: ThinkingBudget | None = Field(
        default=None, description="Most tokens of reasoning; then the model has to answer."
    )
    priority: OwnPriority = None
    timeout_seconds: TimeoutSeconds | None = None
    user: OfNoEffect[Text] = None
    safety_identifier: OfNoEffect[Text] = None
    prompt_cache_key: OfNoEffect[Text] = None
    prompt_cache_retention: Ignored = None
    prompt_cache_options: Ignored = None
    max_tool_calls: OfNoEffect[Annotated[int, Field(ge=1, lt=2**31)]] = None
    tools: (
        Annotated[
            list[Annotated[FunctionTool, BeforeValidator(_only_functions)]], Field(max_length=MAX_TOOLS)
        ]
        | None
    ) = None
    tool_choice: ResponseToolChoice | None = Field(
        default=None, description="Default: `auto` with tools. `required`, or a function, forces a call."
    )
    parallel_tool_calls: bool | None = Field(
        default=None, description="Whether a response may call several functions. Default: true."
    )
    tool_endpoint: OwnToolEndpoint = None
    conversation: Unsupported = None
    prompt: Unsupported = None
    context_management: Unsupported = None
    moderation: Unsupported = None

    @property
    def is_background(self) -> bool:
        """Return whether the client does not wait for the output."""
        return bool(self.background)

    @property
    def is_stored(self) -> bool:
        """Return whether the response can be retrieved later."""
        return self.store is not False

    @property
    def is_flex(self) -> bool:
        """Return whether it waits its turn among batches."""
        return self.service_tier == "flex"

    @property
    def num_logprobs(self) -> int | None:
        """The number of most likely tokens to report beside each token; None: no logprobs at all."""
        if self.top_logprobs or LOGPROBS in (self.include or ()):
            return self.top_logprobs or 0
        return None

    def echo(self) -> dict[str, JsonValue]:
        """Return the fields that the response repeats, as they were sent."""
        kept = self.model_dump(mode="json", by_alias=True, exclude_none=True, include=REPEATED)
        found = {name: value for name, value in kept.items() if name in self.model_fields_set}
        if self.tools:
            names = {"type", "name", "description", "parameters", "strict"}
            found["tools"] = [tool.model_dump(mode="json", include=names) for tool in self.tools]
        return found
