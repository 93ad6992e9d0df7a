"""Defines the bodies of the batch routes. Unknown fields are refused, so a misspelt option is noticed."""

import re
from datetime import datetime, timedelta
from typing import Annotated, Literal, Self

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    model_validator,
)

from api.batches.experiments import ExperimentFields
from api.batches.progress_schemas import EtaRange, WaitingAnswer
from api.batches.result_schemas import RequestErrorAnswer
from api.batches.starts import StartAfter
from api.figures import Cost, DeviceTime, LaneLatency, UsageFigures
from api.inputs.caching import Cache, CacheTtl, Similarity
from api.inputs.expected import ExpectedField
from api.inputs.labels import Metadata, Name
from api.inputs.reasoning import ReasoningFields
from api.inputs.sampling import SamplingFields
from api.inputs.schema import NonEmptyText, Priority, Schema, Text, TimeoutSeconds
from api.inputs.tools import ToolCalls, ToolEndpoint, ToolFields
from worker.contract.states import BatchStatus, EventState
from worker.values.requests import RequestKind
from worker.values.results import Output

WINDOW = re.compile(r"([1-9][0-9]{0,5})([smhd])")
WINDOW_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
MAX_WINDOW = timedelta(days=30)


def _window(text: str) -> str:
    match = WINDOW.fullmatch(text)
    if match is None:
        raise ValueError("must be a number and a unit, such as 90s, 30m, 24h or 7d")
    if parse_window(text) > MAX_WINDOW:
        raise ValueError(f"must be at most {MAX_WINDOW.days}d")
    return text


def parse_window(text: str) -> timedelta:
    """Return how long a completion window such as `24h` is."""
    return timedelta(**{WINDOW_UNITS[text[-1]]: int(text[:-1])})


def _no_number(value: object) -> object:
    if isinstance(value, (int, float)):  # pydantic takes it for seconds since 1970
        raise ValueError("must be a string such as 2026-11-21T12:00:00Z")  # noqa: TRY004 - the client reads it
    return value


Window = Annotated[str, AfterValidator(_window)]
MaxFailed = Annotated[
    int,
    Field(ge=0, lt=2**31, description="The batch stops once more requests than this have failed."),
]
MaxTotalTokens = Annotated[
    int,
    Field(
        ge=1,
        lt=2**53,
        description="The batch stops once it has used so many tokens, input and output. Beyond the first of a"
        " shard, no request starts whose prompt and longest output the rest is not enough for.",
    ),
]


class Message(Schema):
    """One turn of a conversation."""

    role: NonEmptyText
    content: Text | None = Field(default=None, description="Required, unless the message calls tools.")
    tool_calls: ToolCalls | None = None
    tool_call_id: Text | None = Field(default=None, description="Of a result: the call that it answers.")
    name: Text | None = Field(default=None, description="Of a result: the function that it answers.")

    reasoning_content: Text | None = Field(
        default=None, description="Of an earlier answer, for templates that repeat it."
    )

    @property
    def past_reasoning(self) -> str | None:
        """What the model wrote before it."""
        return self.reasoning_content

    @property
    def text(self) -> str:
        """The content, empty if there is none."""
        return self.content or ""


class BatchRequest(SamplingFields, ToolFields, ReasoningFields):
    """One prompt, or one conversation, with any sampling parameters that differ from the batch's.

    A request for an embedding, or for scores, generates nothing, so it takes no sampling parameters.
    """

    custom_id: Annotated[NonEmptyText, Field(max_length=64)] | None = None
    model: NonEmptyText | None = Field(
        default=None, description="A name of a served model. Default: the batch's."
    )
    prompt: NonEmptyText | None = None
    messages: Annotated[list[Message], Field(min_length=1)] | None = None
    kind: RequestKind = Field(default=RequestKind.GENERATION, strict=False)
    pooling: Literal["last", "mean"] | None = Field(default=None, description="Of an embedding.")
    normalize: bool | None = Field(default=None, description="Of an embedding: scaled to length one.")
    dimensions: Annotated[int, Field(ge=1, lt=2**31)] | None = Field(
        default=None, description="Of an embedding: how many to keep."
    )
    continuations: Annotated[list[NonEmptyText], Field(min_length=1, max_length=1024)] | None = Field(
        default=None, description="What to score, each with the space that parts it from the prompt."
    )
    priority: Priority | None = Field(default=None, description="Default: the batch's. Higher runs sooner.")
    timeout_seconds: TimeoutSeconds | None = None
    cache: Cache | None = None
    cache_ttl_seconds: CacheTtl | None = Field(default=None, description="Default: the batch's.")
    expected: ExpectedField | None = None

    @model_validator(mode="after")
    def _has_one_input(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("must have either prompt or messages")
        if self.messages is None and (self.tools or self.tool_choice or self.tool_endpoint):
            raise ValueError("must have messages to have tools")
        of_chats = [name for name in ReasoningFields.model_fields if getattr(self, name) is not None]
        if self.messages is None and of_chats:
            raise ValueError(f"must have messages to have {of_chats[0]}")
        return self


class BatchSubmission(SamplingFields):
    """A batch to submit: prompts or requests, shared sampling parameters, and options."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "prompts": ["def read_lines(path):\n", "The json module provides"],
                    "callback_url": "https://example.com/hooks/headrace",
                    "max_tokens": 64,
                    "temperature": 0.7,
                },
                {
                    "requests": [
                        {"custom_id": "row-1", "prompt": "class Queue:\n", "max_tokens": 128},
                        {"custom_id": "row-2", "prompt": "import os\n", "temperature": 0.0},
                    ],
                    "completion_window": "24h",
                    "metadata": {"dataset": "docstrings"},
                },
            ]
        }
    )

    prompts: Annotated[list[NonEmptyText], Field(min_length=1)] | None = None
    requests: Annotated[list[BatchRequest], Field(min_length=1)] | None = None
    model: NonEmptyText | None = Field(
        default=None, description="Of requests that name none: a name of a served model. Default: the first."
    )
    callback_url: NonEmptyText | None = Field(
        default=None, description="Called once, signed by Standard Webhooks, when the batch has ended."
    )
    name: Name | None = None
    start_after: StartAfter | None = None
    priority: Priority = 0
    completion_window: Window | None = Field(
        default=None, description="What is not done by then expires: 90s, 30m, 24h, 7d. Default: no limit."
    )
    deadline: Annotated[AwareDatetime, Field(strict=False), BeforeValidator(_no_number)] | None = Field(
        default=None, description="A completion window that is given by its end."
    )
    timeout_seconds: TimeoutSeconds | None = Field(
        default=None, description="Of each request without its own."
    )
    tool_endpoint: ToolEndpoint | None = Field(
        default=None, description="Of each request that offers tools and has no endpoint of its own."
    )
    max_failed: MaxFailed | None = None
    max_total_tokens: MaxTotalTokens | None = None
    cache: Cache | None = None
    cache_similarity: Similarity | None = None
    cache_ttl_seconds: CacheTtl | None = None
    metadata: Metadata = Field(default_factory=dict)
    experiment: ExperimentFields | None = None

    @model_validator(mode="after")
    def _has_one_input(self) -> Self:
        if (self.prompts is None) == (self.requests is None):
            raise ValueError("must have either prompts or requests")
        if self.deadline is not None and self.completion_window is not None:
            raise ValueError("must not have both completion_window and deadline")
        return self


class BatchAccepted(BaseModel):
    """The answer to an accepted batch: it is stored durably, and runs even if processes die."""

    batch_id: str = Field(examples=["batch_0d9c6d1f7a5b4c7f8f7b6f9f4c1e2a3b"])
    status: BatchStatus
    requests: int
    created_at: datetime
    retry_of: str | None = None
    experiment_id: str | None = None


class Counts(BaseModel):
    """The requests by outcome: total = pending + completed + failed + cancelled."""

    model_config = ConfigDict(from_attributes=True, validate_by_name=True)

    total: int = Field(validation_alias="num_requests")
    pending: int = Field(validation_alias="num_pending")
    completed: int = Field(validation_alias="num_completed")
    failed: int = Field(validation_alias="num_failed")
    cancelled: int = Field(validation_alias="num_cancelled")


class InputTokensDetails(BaseModel):
    """Details of the input tokens."""

    cached_tokens: int = Field(description="read from the prefix cache instead of being computed")


class Usage(BaseModel):
    """Tokens of the requests that have a result, by the model's tokenizer."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    total_tokens: int
    device_seconds: DeviceTime
    cost: Cost = Field(description="of device time and tokens, at the prices that held then")


class Tokens(BaseModel):
    """Output tokens, including those of running requests."""

    done: int
    expected: int = Field(description="what the batch will have generated in the end, as far as can be told")
    max: int = Field(description="what the batch generates if no request ends early")


class Callback(BaseModel):
    """The state of the delivery to the callback URL."""

    model_config = ConfigDict(from_attributes=True)

    url: str
    event_id: str | None = None
    state: EventState | None = Field(default=None, description="null until the batch ends")
    attempts: int = 0
    last_status_code: int | None = None
    last_error: str | None = None


class BatchModel(BaseModel):
    """The model that a batch was accepted for; no other model may run a request that does not name it."""

    name: str
    revision: str = Field(description="a fingerprint of its weights, config, tokenizer and chat template")


class ModelPartAnswer(BaseModel):
    """What one of its models has to run of a batch whose requests name several."""

    name: str
    revision: str
    counts: Counts = Field(description="without lines that are not read yet")
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    cost: Cost
    waiting: WaitingAnswer | None = Field(
        default=None, description="null while some of it runs, and at the end"
    )


class BatchAnswer(BaseModel):
    """The current state of a batch."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "batch_id": "batch_0d9c6d1f7a5b4c7f8f7b6f9f4c1e2a3b",
                    "tenant": "default",
                    "status": "processing",
                    "progress": 0.4375,
                    "counts": {"total": 2, "pending": 1, "completed": 1, "failed": 0, "cancelled": 0},
                    "tokens": {"done": 52, "expected": 90, "max": 128},
                    "usage": {
                        "input_tokens": 7,
                        "input_tokens_details": {"cached_tokens": 0},
                        "output_tokens": 24,
                        "total_tokens": 31,
                        "device_seconds": {"prefill": 0.01, "decode": 0.2, "padding": 0.0, "total": 0.21},
                        "cost": {"amount": 0.000146, "currency": "USD"},
                    },
                    "deduplicated": 0,
                    "cached": 0,
                    "eta_seconds": 1.9,
                    "priority": 0,
                    "metadata": {"dataset": "docstrings"},
                    "callback": {"url": "https://example.com/hooks/headrace", "attempts": 0},
                    "created_at": "2026-11-21T12:00:00Z",
                    "started_at": "2026-11-21T12:00:00.1Z",
                    "expires_at": None,
                    "finished_at": None,
                    "outputs": ['    """Return the lines of a file."""', None],
                    "error": None,
                }
            ]
        }
    )

    batch_id: str
    tenant: str = Field(description="whose batch it is")
    status: BatchStatus
    model: BatchModel | None = Field(
        default=None, description="null for a batch from before models were recorded: any worker runs it"
    )
    models: list[ModelPartAnswer] | None = Field(
        default=None, description="if its requests name several: what each has to run"
    )
    progress: float = Field(
        ge=0,
        le=1,
        description="by tokens, so it moves while requests run; of a batch that stopped early: the share of"
        " its requests that ran to their end",
    )
    counts: Counts
    tokens: Tokens
    usage: Usage
    deduplicated: int = Field(description="requests answered by an identical one of this batch")
    cached: int = Field(description="requests answered by the response cache")
    eta_seconds: float | None = Field(description="null before there is anything to judge by, and at the end")
    eta_range: EtaRange | None = None
    waiting: WaitingAnswer | None = Field(default=None, description="null while it runs, and at the end")
    paused: bool = Field(default=False, description="until you resume it")
    start_after: datetime | None = Field(
        default=None, description="when it starts, or started, by itself; null once it was paused or resumed"
    )
    retry_of: str | None = None
    experiment_id: str | None = None
    max_failed: int | None = None
    max_total_tokens: int | None = None
    priority: int
    name: str | None = None
    metadata: dict[str, str]
    callback: Callback | None
    created_at: datetime
    started_at: datetime | None
    expires_at: datetime | None = None
    finished_at: datetime | None = None
    results_dropped_at: datetime | None = Field(default=None, description="when retention took the results")
    outputs: list[Output] | None = Field(
        description="in the order of the requests, a list of texts where several choices were asked for, "
        "null where there is none (yet); small batches only"
    )
    error: RequestErrorAnswer | None = Field(default=None, description="the rule that stopped the batch")


class BatchPage(BaseModel):
    """Batches, the newest first. Pass `last_id` as `after` to read on."""

    object: Literal["list"] = "list"
    data: list[BatchAnswer]
    last_id: str | None
    has_more: bool


class BatchStats(BaseModel):
    """The number of batches in each status, and usage and latencies since the first day."""

    total_batches: int
    pending: int
    processing: int
    cancelling: int
    completed: int
    failed: int
    cancelled: int
    expired: int
    usage: UsageFigures = Field(description="of interactive work too")
    latency: list[LaneLatency] = Field(description="by lane and priority")
