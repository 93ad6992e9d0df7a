"""Defines what OpenAI's clients read of responses, for OpenAPI. `api.responses.answers` writes it."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from api.openai.answer_schemas import ChosenToken

ItemStatus = Literal["in_progress", "completed", "incomplete"]


class TextOutputPart(BaseModel):
    """A piece of a message's text. `logprobs` is empty unless asked for."""

    type: Literal["input_text", "output_text"]
    text: str
    annotations: list[Any] | None = None
    logprobs: list[ChosenToken] | None = None


class MessageOutput(BaseModel):
    """A turn of the conversation."""

    id: str
    type: Literal["message"]
    role: Literal["user", "assistant", "system", "developer"]
    status: ItemStatus
    content: list[TextOutputPart]


class FunctionCallOutput(BaseModel):
    """The model's call of a function."""

    id: str
    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str
    status: ItemStatus


class FunctionResultOutput(BaseModel):
    """What a function that the model called has returned."""

    id: str
    type: Literal["function_call_output"]
    call_id: str
    output: str
    status: ItemStatus


class ReasoningOutput(BaseModel):
    """The model's reasoning."""

    id: str
    type: Literal["reasoning"]
    summary: list[Any]
    content: list[Any]


OutputItem = Annotated[
    MessageOutput | FunctionCallOutput | FunctionResultOutput | ReasoningOutput, Field(discriminator="type")
]


class ResponseInputTokens(BaseModel):
    """Details of the input tokens."""

    cached_tokens: int
    cache_write_tokens: Literal[0] = Field(description="Nothing is charged for what the cache keeps.")


class ResponseOutputTokens(BaseModel):
    """Details of the output tokens."""

    reasoning_tokens: int


class ResponseUsage(BaseModel):
    """Tokens of a response, by the model's tokenizer."""

    input_tokens: int
    input_tokens_details: ResponseInputTokens
    output_tokens: int
    output_tokens_details: ResponseOutputTokens
    total_tokens: int


class ResponseError(BaseModel):
    """Why a response failed; the message ends with this server's own code."""

    code: Literal["server_error", "invalid_prompt"]
    message: str


class IncompleteDetails(BaseModel):
    """Why an output is cut off."""

    reason: Literal["max_output_tokens"]


class ResponseObject(BaseModel):
    """A response, and what it was asked for. Times are Unix seconds."""

    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
    error: ResponseError | None
    incomplete_details: IncompleteDetails | None
    model: str
    output: list[OutputItem]
    usage: ResponseUsage | None
    background: bool
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    previous_response_id: str | None
    prompt_cache_key: str | None
    reasoning: dict[str, str | None]
    safety_identifier: str | None
    service_tier: Literal["default", "flex"]
    store: bool
    temperature: float
    text: dict[str, Any]
    tool_choice: Any
    tools: list[Any]
    top_logprobs: int
    top_p: float
    truncation: Literal["auto", "disabled"]
    user: str | None


class ResponseDeleted(BaseModel):
    """A response that is gone."""

    id: str
    object: Literal["response"] = "response"
    deleted: Literal[True] = True


class ItemList(BaseModel):
    """A page of items. Pass `last_id` as `after` to read on."""

    object: Literal["list"]
    data: list[OutputItem]
    first_id: str | None
    last_id: str | None
    has_more: bool
