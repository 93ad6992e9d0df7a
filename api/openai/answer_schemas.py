"""Defines the bodies that OpenAI's clients read, for OpenAPI. `api.openai.answers` writes them."""

from datetime import datetime
from typing import Literal

from pydantic import BaseModel, Field

from api.batches.result_schemas import TOOL_TURNS, CalledTool, FunctionCall, ToolTurnAnswer
from worker.contract.processes import ModelState


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


OfTokens = list[int] | None
TOKEN_IDS = Field(default=None, description="If `return_token_ids` is set; with the token that ended it.")
PROMPT_TOKEN_IDS = Field(default=None, description="If `return_token_ids` is set.")


class RankedToken(BaseModel):
    """A logprob of a prompt's token, or of a likely one in its place."""

    logprob: float
    rank: int | None = Field(description="among all tokens, 1 for the likeliest")
    decoded_token: str


PROMPT_LOGPROBS = Field(
    default=None,
    description="If `prompt_logprobs` is set: for each token of the prompt, by token id, its own logprob and"
    " those of the likeliest tokens. The first token has none.",
)


class ChatChoice(BaseModel):
    """One output."""

    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: str
    token_ids: OfTokens = TOKEN_IDS


class _Completed(BaseModel):
    id: str
    created: int
    model: str
    usage: CompletionUsage
    system_fingerprint: str | None


class ChatCompletion(_Completed):
    """A chat completion."""

    object: Literal["chat.completion"]
    choices: list[ChatChoice]
    prompt_logprobs: list[dict[str, RankedToken] | None] | None = PROMPT_LOGPROBS
    prompt_token_ids: OfTokens = PROMPT_TOKEN_IDS
    tool_turns: list[ToolTurnAnswer] | None = TOOL_TURNS


class CompletionLogprobs(BaseModel):
    """The tokens of a choice. With `echo`, its prompt's come first, of which the first has no logprob."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(BaseModel):
    """One output."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: str
    prompt_logprobs: list[dict[str, RankedToken] | None] | None = PROMPT_LOGPROBS
    prompt_token_ids: OfTokens = PROMPT_TOKEN_IDS
    token_ids: OfTokens = TOKEN_IDS


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
    root: str = Field(description="the model that answers to this name")
    parent: None
    max_model_len: int
    type: Literal["model"]
    display_name: str
    created_at: datetime
    lifecycle: Literal["active"]
    max_input_tokens: int
    status: ModelState = Field(
        description="`loaded` or `loading` at a gpu worker; `unloaded`: a worker that serves several models"
        " loads it when its turn comes; `unserved`: no worker serves it"
    )


class ModelList(BaseModel):
    """The names of the one model that is served."""

    object: Literal["list"]
    data: list[ModelAnswer]
    has_more: Literal[False]
    first_id: str
    last_id: str
