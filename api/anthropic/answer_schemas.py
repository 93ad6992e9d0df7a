"""Defines the bodies that Anthropic's clients read, for OpenAPI. `api.anthropic.answers` writes them."""

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

StopReason = Literal[
    "end_turn", "max_tokens", "stop_sequence", "tool_use", "refusal", "model_context_window_exceeded"
]


class TextBlock(BaseModel):
    """A piece of the answer."""

    type: Literal["text"]
    text: str
    citations: None = None


class ThinkingBlock(BaseModel):
    """The model's reasoning before its answer."""

    type: Literal["thinking"]
    thinking: str
    signature: str


class ToolUseBlock(BaseModel):
    """A call of one of the tools."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


AnswerBlock = Annotated[TextBlock | ThinkingBlock | ToolUseBlock, Field(discriminator="type")]


class MessageUsage(BaseModel):
    """Tokens of a message, by the model's tokenizer."""

    input_tokens: int = Field(description="of the prompt, computed for this message")
    cache_creation_input_tokens: Literal[0]
    cache_read_input_tokens: int = Field(description="of the prompt, found in the prefix cache")
    output_tokens: int


class MessageAnswer(BaseModel):
    """The next message of a conversation."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[AnswerBlock]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: MessageUsage


class MessageTokens(BaseModel):
    """The number of tokens of a prompt."""

    input_tokens: int


class MessageBatchCounts(BaseModel):
    """The requests of a batch by outcome, also while it runs."""

    processing: int
    succeeded: int
    errored: int
    canceled: int
    expired: int


class MessageBatch(BaseModel):
    """The current state of a batch of messages."""

    id: str
    type: Literal["message_batch"] = "message_batch"
    processing_status: Literal["in_progress", "canceling", "ended"]
    request_counts: MessageBatchCounts
    created_at: datetime
    expires_at: datetime
    ended_at: datetime | None
    cancel_initiated_at: datetime | None
    archived_at: datetime | None = Field(description="When its results were deleted.")
    results_url: str | None = Field(description="A path of this server; null while the batch runs.")
    experiment_id: str | None = Field(description="/v1/experiments/{id} reports. Not of Anthropic's API.")


class MessageBatchList(BaseModel):
    """Batches, the newest first."""

    data: list[MessageBatch]
    has_more: bool
    first_id: str | None
    last_id: str | None


class DeletedMessageBatch(BaseModel):
    """A batch that was deleted."""

    id: str
    type: Literal["message_batch_deleted"] = "message_batch_deleted"
