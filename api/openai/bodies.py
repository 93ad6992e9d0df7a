"""Defines the bodies that OpenAI's clients send.

Unsupported fields are refused; fields that change no output are accepted.
"""

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, Tag, ValidationError

from api.errors import invalid_input
from api.inputs.foreign import ForeignFields, Ignored, Unsupported
from api.inputs.reasoning import ReasoningFields
from api.inputs.sampling import CommonSamplingFields, MaxTokens, NumLogprobs, SamplingFields, TokenId
from api.inputs.schema import (
    NonEmptyText,
    Priority,
    Schema,
    Text,
    TimeoutSeconds,
    one_of,
    text_or_list,
    text_or_object,
)
from api.inputs.tools import (
    MAX_TOOLS,
    CalledFunction,
    FunctionChoice,
    FunctionDefinition,
    ToolCalls,
    ToolFields,
)


class Endpoint(StrEnum):
    """The purpose of a body, as a line of a batch names it in `url`."""

    CHAT_COMPLETIONS = "/v1/chat/completions"
    COMPLETIONS = "/v1/completions"
    EMBEDDINGS = "/v1/embeddings"
    RESPONSES = "/v1/responses"  # its bodies are in `api.responses`


OwnPriority = Annotated[
    Priority | None,
    Field(
        description="Of a line of a batch: higher runs sooner. Default: the batch's. What is answered at once"
        " goes before all batches, whatever its priority."
    ),
]
TokenIds = Annotated[list[TokenId], Field(min_length=1)]
MAX_PROMPTS = 2048


def _kind_of_prompts(value: object) -> str | None:
    if not isinstance(value, list) or not value:
        return text_or_list(value)
    if isinstance(value[0], list):
        return "lists of token ids"
    return "token ids" if isinstance(value[0], int) else "list"


Prompts = Annotated[
    Annotated[NonEmptyText, Tag("text")]
    | Annotated[TokenIds, Tag("token ids")]
    | Annotated[list[NonEmptyText], Field(min_length=1, max_length=MAX_PROMPTS), Tag("list")]
    | Annotated[list[TokenIds], Field(min_length=1, max_length=MAX_PROMPTS), Tag("lists of token ids")],
    one_of("a string, a list of strings, a list of token ids or a list of such lists", _kind_of_prompts),
]

# The kinds of OpenAI's message parts that no model here can read.
UNREADABLE = {"image_url": "images", "input_audio": "audio", "file": "files"}


def _readable(kind: object) -> object:
    if isinstance(kind, str) and kind in UNREADABLE:
        raise ValueError(f"{UNREADABLE[kind]} are not supported; send text only")
    return kind


class TextPart(Schema):
    """A piece of a message."""

    type: Annotated[Literal["text"], BeforeValidator(_readable)]
    text: Text


Content = Annotated[
    Annotated[Text, Tag("text")] | Annotated[list[TextPart], Field(min_length=1), Tag("list")],
    one_of("a string or a list of text parts", text_or_list),
]


class ChatMessage(Schema):
    """One turn of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    name: Text | None = None
    refusal: Unsupported = None
    audio: Unsupported = None
    annotations: Ignored = None
    function_call: CalledFunction | None = Field(default=None, description="The older form of `tool_calls`.")
    tool_calls: ToolCalls | None = None
    tool_call_id: Text | None = Field(
        default=None, description="Of a tool's result: the call that it answers."
    )
    content: Content | None = Field(
        default=None, description="Required, except of a message that calls tools."
    )
    reasoning_content: Text | None = Field(
        default=None, description="Of an earlier answer, for templates that repeat it."
    )
    reasoning: Text | None = Field(default=None, description="The newer name of `reasoning_content`.")

    @property
    def past_reasoning(self) -> str | None:
        """What the model wrote before it."""
        return self.reasoning_content or self.reasoning

    @property
    def text(self) -> str:
        """The content as one text."""
        if self.content is None or isinstance(self.content, str):
            return self.content or ""
        return "\n".join(part.text for part in self.content)


class StreamOptions(Schema):
    """Options for what a stream holds besides tokens."""

    include_usage: bool | None = Field(default=None, description="A last chunk has the usage.")
    continuous_usage_stats: bool | None = Field(
        default=None, description="Each chunk has the usage so far, over all choices."
    )
    include_obfuscation: Ignored = None


class Streamed(ForeignFields):
    """The fields that both kinds of completion share besides sampling."""

    model: NonEmptyText
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    priority: OwnPriority = None
    timeout_seconds: TimeoutSeconds | None = None
    add_special_tokens: bool | None = Field(
        default=None,
        description="Put the tokenizer's special tokens around the prompt. Default: true for a prompt, false"
        " for a chat, whose template writes them.",
    )
    return_token_ids: bool | None = Field(
        default=None, description="The answer has the ids of the tokens of prompts and choices."
    )
    return_tokens_as_token_ids: bool | None = Field(
        default=None, description="Logprobs spell each token as its id: `token_id:17`."
    )


OlderChoice = Annotated[
    Annotated[Literal["none", "auto"], Tag("text")] | Annotated[FunctionChoice, Tag("object")],
    one_of("`none`, `auto` or the name of a function", text_or_object),
]


class ChatBody(CommonSamplingFields, Streamed, ToolFields, ReasoningFields):
    """A request for a chat completion."""

    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    max_completion_tokens: MaxTokens | None = Field(
        default=None, description="The newer name of `max_tokens`; if a request has both, this one counts."
    )
    logprobs: bool | None = None
    top_logprobs: NumLogprobs | None = None
    modalities: list[Literal["text"]] | None = None
    functions: Annotated[list[FunctionDefinition], Field(max_length=MAX_TOOLS)] | None = Field(
        default=None, description="The older form of `tools`."
    )
    function_call: OlderChoice | None = Field(default=None, description="The older form of `tool_choice`.")
    audio: Unsupported = None
    web_search_options: Unsupported = None
    chat_template: Unsupported = None
    documents: Unsupported = None
    media_io_kwargs: Unsupported = None
    mm_processor_kwargs: Unsupported = None

    @property
    def num_logprobs(self) -> int | None:
        """The number of most likely tokens to report beside each token; None: no logprobs at all."""
        return (self.top_logprobs or 0) if self.logprobs else None


class CompletionBody(SamplingFields, Streamed):
    """A request for completions of one or several prompts."""

    prompt: Prompts
    echo: bool | None = Field(
        default=None,
        description="Each choice begins with its prompt; its logprobs, if asked for, with the prompt's. With"
        " `max_tokens: 0` it is the prompt alone.",
    )
    suffix: Unsupported = None

    @property
    def num_prompt_logprobs(self) -> int | None:
        """The number of most likely tokens to report beside each token of the prompt; None: no logprobs."""
        return self.logprobs if self.echo and self.prompt_logprobs is None else self.prompt_logprobs


class EmbeddingBody(Schema):
    """A request for the embeddings of one or several texts."""

    model: NonEmptyText
    input: Prompts
    dimensions: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    encoding_format: Literal["float", "base64"] = "float"
    pooling: Literal["last", "mean"] = "last"
    normalize: bool = True
    priority: OwnPriority = None
    timeout_seconds: TimeoutSeconds | None = None
    user: Ignored = None


Body = ChatBody | CompletionBody | EmbeddingBody

BODIES: dict[Endpoint, type[Body]] = {
    Endpoint.CHAT_COMPLETIONS: ChatBody,
    Endpoint.COMPLETIONS: CompletionBody,
    Endpoint.EMBEDDINGS: EmbeddingBody,
}


def read_body(endpoint: Endpoint, body: Any, path: str = "") -> Body:
    """Check a body that came as JSON.

    Raises:
        InvalidInputError: a field is wrong; `param` is its name after `path`.

    """
    try:
        return BODIES[endpoint].model_validate(body)
    except ValidationError as error:
        raise invalid_input(error.errors(include_url=False)[0], body, path) from error
