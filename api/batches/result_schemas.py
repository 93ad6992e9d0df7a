"""Defines a Result as a client reads it."""

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from api.batches.progress_schemas import RequestAttemptAnswer
from api.figures import DeviceTime
from worker.contract.states import BatchStatus
from worker.values.caching import Source
from worker.values.outcomes import Outcome


class RequestErrorAnswer(BaseModel):
    """The reason why a request, or a batch as a whole, has no complete output."""

    code: str
    message: str


class RequestUsage(BaseModel):
    """Tokens of one request."""

    input_tokens: int
    cached_tokens: int
    output_tokens: int
    guessed_tokens: int = Field(description="guessed before the model chose them, and verified")
    right_tokens: int = Field(description="of the guessed tokens, those that the model chose too")
    device_seconds: DeviceTime


class TokenAnswer(BaseModel):
    """A token with its logprob, and the most likely tokens at its position."""

    token: str
    token_id: int
    logprob: float
    top: list["TokenAnswer"] | None = None


class FunctionCall(BaseModel):
    """A function that the model calls."""

    name: str
    arguments: str = Field(description="JSON")


class CalledTool(BaseModel):
    """A call of a tool."""

    id: str
    type: Literal["function"]
    function: FunctionCall


class ParsedMessage(BaseModel):
    """What an output says, in parts. It can be sent back as a message of the conversation."""

    role: Literal["assistant"]
    content: str | None
    reasoning_content: str | None = None
    tool_calls: list[CalledTool] | None = None


class ChoiceAnswer(BaseModel):
    """One of a request's outputs."""

    text: str
    message: ParsedMessage | None = Field(default=None, description="if the request has tools")
    finish_reason: str
    logprobs: list[TokenAnswer] | None = None


class ScoreAnswer(BaseModel):
    """The logprobs of a given continuation."""

    logprob: float = Field(description="of the whole continuation")
    token_logprobs: list[float]
    is_greedy: bool = Field(description="whether each token is the most likely one")


class ResultModel(BaseModel):
    """The model that made a result."""

    name: str
    revision: str = Field(description="a fingerprint of its weights, config, tokenizer and chat template")
    weight_format: str = Field(description="how its checkpoint holds the weights")
    dtype: str = Field(description="what the engine computed in")


class Times(BaseModel):
    """When a request was accepted, first run and done, and how long it waited and took."""

    created_at: datetime = Field(description="when its batch was accepted")
    started_at: datetime | None = Field(default=None, description="when the engine first ran it, if it did")
    completed_at: datetime = Field(description="when its result was stored")
    queue_ms: float | None = Field(default=None, description="from created_at to started_at")
    latency_ms: float = Field(description="from created_at to completed_at")


class RequestAnswer(BaseModel):
    """A request as it was stored."""

    model_config = ConfigDict(from_attributes=True)

    prompt: str | None = Field(description="as the model reads it: messages are in the chat template")
    inputs: list[Any] | None = Field(description="several prompts, or token ids, instead of prompt")
    max_tokens: int
    metadata: dict[str, Any] | None = Field(description="of the line's body, in a batch made from a file")
    expected: dict[str, Any] | None = Field(default=None, description="what its output is judged by")


class MadeCallAnswer(BaseModel):
    """A call that a tool endpoint was asked to make."""

    model_config = ConfigDict(from_attributes=True)

    id: str
    name: str
    arguments: str = Field(description="JSON, as the model wrote it")
    answer: str | None = Field(description="the body of the endpoint's answer")
    error: str | None = Field(description="why there is no answer; the model reads it, or the request fails")
    status_code: int | None = Field(description="of the last HTTP answer")
    seconds: float = Field(description="over all attempts")
    attempts: int = Field(description="0: it was not sent, as the model named no function or wrote no JSON")


class ToolTurnAnswer(BaseModel):
    """An output of a tool loop that called tools, and what became of the calls."""

    turn: int = Field(description="from 1")
    content: str | None = Field(description="what the model said beside the calls")
    calls: list[MadeCallAnswer]
    input_tokens: int
    cached_tokens: int = Field(description="of the input tokens, those that were not computed again")
    output_tokens: int


TOOL_TURNS = Field(
    default=None,
    description="if the request has a `tool_endpoint`: its turns before the last output. The usage is the sum"
    " of all turns.",
)


class ResultAnswer(Times):
    """One request's outcome."""

    sequence: int = Field(description="order of completion, from 1: the cursor")
    index: int = Field(description="position in the submission, from 0")
    custom_id: str | None
    status: Outcome
    output: str | None
    finish_reason: str | None
    message: ParsedMessage | None = Field(
        default=None, description="if the request has tools: the parts of `output`"
    )
    choices: list[ChoiceAnswer] | None = Field(
        default=None, description="if several, or logprobs, were asked for"
    )
    prompt_logprobs: list[TokenAnswer] | None = Field(
        default=None, description="of each token after the first"
    )
    tool_turns: list[ToolTurnAnswer] | None = TOOL_TURNS
    embedding: list[float] | None = None
    scores: list[ScoreAnswer] | None = None
    model: ResultModel | None = Field(default=None, description="null where none was run")
    source: Source = Field(description="engine: run for this request; otherwise whose answer it is")
    similarity: float | None = Field(
        default=None, description="to the prompt whose answer it has, or of which `hit_is_right` tells"
    )
    hit_is_right: bool | None = Field(
        default=None,
        description="run although the semantic cache had an answer: whether that would have been right",
    )
    usage: RequestUsage
    error: RequestErrorAnswer | None = None
    attempts: list[RequestAttemptAnswer] = Field(
        default_factory=list, description="tries before this outcome that were cut short, and why"
    )
    request: RequestAnswer | None = Field(default=None, description="if `include=request` asks for it")


class ResultPage(BaseModel):
    """Results, in order of completion unless `order` asks for another. Pass `next` as `after` to read on."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "object": "list",
                    "data": [
                        {
                            "sequence": 1,
                            "index": 0,
                            "custom_id": "row-1",
                            "status": "completed",
                            "output": '    """Return the lines of a file."""',
                            "finish_reason": "stop",
                            "source": "engine",
                            "usage": {
                                "input_tokens": 7,
                                "cached_tokens": 0,
                                "output_tokens": 12,
                                "guessed_tokens": 0,
                                "right_tokens": 0,
                                "device_seconds": {
                                    "prefill": 0.01,
                                    "decode": 0.1,
                                    "padding": 0.0,
                                    "total": 0.11,
                                },
                            },
                            "error": None,
                            "created_at": "2026-11-21T12:00:00Z",
                            "started_at": "2026-11-21T12:00:00.25Z",
                            "completed_at": "2026-11-21T12:00:01.5Z",
                            "queue_ms": 250.0,
                            "latency_ms": 1500.0,
                        }
                    ],
                    "next": 1,
                    "has_more": False,
                    "status": "processing",
                }
            ]
        }
    )

    object: Literal["list"] = "list"
    data: list[ResultAnswer]
    next: int
    has_more: bool = Field(description="whether more results are there now")
    status: BatchStatus = Field(
        description="the batch's: while it has not ended more results may come, for which `wait` waits"
    )
