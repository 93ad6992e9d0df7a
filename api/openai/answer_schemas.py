"""Defines the bodies that OpenAI's clients read, for OpenAPI. `api.openai.responses` writes them."""

from datetime import datetime
from typing import Literal

from pydantic import BaseModel, Field

from api.batches.result_schemas import CalledTool, FunctionCall


class PromptTokensDetails(BaseModel):
    """Details of the prompt's tokens."""

    cached_tokens: int


class CompletionTokensDetails(BaseModel):
    """Details of the output's tokens."""

    reasoning_tokens: int


class CompletionUsage(BaseModel):
    """Tokens of a completion, by the model's tokenizer."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails


class LikelyToken(BaseModel):
    """A token and its logprob."""

    token: str
    logprob: float
    bytes: list[int]


class ChosenToken(LikelyToken):
    """A token of the output, and the most likely tokens at its position."""

    top_logprobs: list[LikelyToken]


class ChatLogprobs(BaseModel):
    """The tokens of a choice."""

    content: list[ChosenToken]
    refusal: None


class AssistantMessage(BaseModel):
    """The model's message."""

    role: Literal["assistant"]
    content: str | None = Field(description="null if the message only calls tools")
    refusal: None
    reasoning_content: str | None = Field(default=None, description="what the model wrote before its answer")
    reasoning: str | None = Field(default=None, description="the same, under its newer name")
    tool_calls: list[CalledTool] | None = None
    function_call: FunctionCall | None = Field(default=None, description="if the request has `functions`")


class ChatChoice(BaseModel):
    """One output."""

    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: str


class _Completed(BaseModel):
    id: str
    created: int
    model: str
    usage: CompletionUsage
    system_fingerprint: str | None
    prompt_logprobs: list[list[ChosenToken]] | None = Field(
        default=None, description="Of each prompt's tokens after the first."
    )


class ChatCompletion(_Completed):
    """A chat completion."""

    object: Literal["chat.completion"]
    choices: list[ChatChoice]


class CompletionLogprobs(BaseModel):
    """The tokens of a choice."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class CompletionChoice(BaseModel):
    """One output."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: str


class TextCompletion(_Completed):
    """A completion."""

    object: Literal["text_completion"]
    choices: list[CompletionChoice]


class EmbeddingVector(BaseModel):
    """A text's vector: numbers, or float32 in base64."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingUsage(BaseModel):
    """Tokens of the texts."""

    prompt_tokens: int
    total_tokens: int


class Embeddings(BaseModel):
    """Vectors, in the order of the texts."""

    object: Literal["list"]
    model: str
    system_fingerprint: str | None
    data: list[EmbeddingVector]
    usage: EmbeddingUsage


class ModelAnswer(BaseModel):
    """The model that is served, by one of its names, with the fields that either kind of client knows."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int
    type: Literal["model"]
    display_name: str
    created_at: datetime
    lifecycle: Literal["active"]
    max_input_tokens: int


class ModelList(BaseModel):
    """The names of the one model that is served."""

    object: Literal["list"]
    data: list[ModelAnswer]
    has_more: Literal[False]
    first_id: str
    last_id: str
