"""Defines the bodies of /tokenize and /detokenize, as vLLM's clients send and read them."""

from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from api.inputs.sampling import TokenId
from api.inputs.schema import JsonObject, NonEmptyText, Schema, Text
from api.inputs.tools import ToolDefinition
from api.openai.bodies import ChatMessage


class TokenizeBody(Schema):
    """A text, or a conversation that the model's chat template writes as one."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"prompt": "def read_lines(path):"}]})

    model: NonEmptyText | None = None
    prompt: Text | None = None
    messages: Annotated[list[ChatMessage], Field(min_length=1)] | None = None
    tools: Annotated[list[ToolDefinition], Field(max_length=128)] | None = None
    add_generation_prompt: bool | None = Field(
        default=None, description="false: the prompt does not begin the model's turn."
    )
    continue_final_message: bool | None = Field(
        default=None, description="The prompt ends within the last message."
    )
    chat_template_kwargs: JsonObject | None = Field(
        default=None, description="Variables of the model's chat template."
    )
    add_special_tokens: bool | None = Field(
        default=None,
        description="Whether the tokenizer adds its special tokens. Default: to a prompt, not to messages.",
    )
    return_token_strs: bool | None = Field(
        default=None, description="The answer has each token as the vocabulary writes it."
    )

    @model_validator(mode="after")
    def _has_one_input(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("must have either prompt or messages")
        return self


class Tokenized(BaseModel):
    """The tokens of a text."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class TokenizerInfo(BaseModel):
    """The tokenizer of the served model."""

    bos_token: str | None
    eos_token: str | None
    unk_token: str | None
    pad_token: str | None
    chat_template: str | None
    model_max_length: int


class DetokenizeBody(Schema):
    """Tokens to write as text."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"tokens": [72, 105]}]})

    model: NonEmptyText | None = None
    tokens: list[TokenId]


class Detokenized(BaseModel):
    """The text of tokens, special ones included."""

    prompt: str
