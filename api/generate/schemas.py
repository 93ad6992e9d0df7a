"""Defines the bodies of the routes that wait for outputs."""

from typing import Annotated, Any

from pydantic import BaseModel, Field

from api.batches.result_schemas import RequestErrorAnswer, Times
from api.inputs.sampling import SamplingFields
from api.inputs.schema import NonEmptyText, TimeoutSeconds
from worker.values.sampling import Optimization

MAX_PROMPTS = 256


LEVELS = (
    "none: alone in its Steps, nothing cached. basic: its Steps are shared with other requests. full: also"
    " the prefix cache and, for greedy and seeded requests, the response cache. A level never changes a"
    " token. Quantized weights would, so they are the deployment's choice (HEADRACE_DTYPE, or a quantized"
    " checkpoint): where they are served, they serve every level, and `used` says so."
)


class GenerateBody(SamplingFields):
    """One prompt, with its sampling parameters."""

    prompt: NonEmptyText
    stream: bool = False
    timeout_seconds: TimeoutSeconds | None = None
    optimization: Optimization = Field(
        default=Optimization.FULL,
        strict=False,
        description=LEVELS,
    )


class PromptsBody(SamplingFields):
    """Several prompts, continued together."""

    prompts: Annotated[list[NonEmptyText], Field(min_length=1, max_length=MAX_PROMPTS)]
    timeout_seconds: TimeoutSeconds | None = None


class GenerateBatchBody(PromptsBody):
    """Several prompts, and the level of optimization at which they run."""

    optimization: Optimization = Field(default=Optimization.FULL, strict=False, description=LEVELS)


class SyncBody(PromptsBody):
    """Several prompts, and how long to wait for them."""

    wait_seconds: Annotated[float, Field(ge=0, le=600, allow_inf_nan=False)] = Field(
        default=60.0, description="After that the answer is 202 with the batch's id, and the work goes on."
    )


class Generated(Times):
    """One prompt's output."""

    text: str
    texts: list[str] | None = Field(default=None, description="every choice, if several were asked for")
    finish_reason: str
    tokens_generated: int
    prompt_tokens: int
    cached_tokens: int = Field(description="of the prompt, not computed because a cache had them")


class Used(BaseModel):
    """The optimizations that an answer really used, of those that its level allows."""

    batched: bool = Field(description="it ran in Steps that other requests could share")
    prefix_cache: bool = Field(description="some of its prompt was found there")
    response_cache: bool = Field(description="all of it was found there: nothing ran")
    deduplicated: bool = Field(description="an identical prompt of the same call was run for it")
    speculation: bool = Field(description="some of its tokens were guessed, and verified several at once")
    quantization: str | None = Field(
        default=None,
        description="how the weights that made it are quantized: by the engine (int8, fp8) or in the"
        " checkpoint (its format); null: they are not",
    )


class OptimizedAnswer(Generated):
    """One output, with the optimizations used."""

    optimization_used: Optimization = Field(description="the level it was run at")
    used: Used


class GenerateAnswer(OptimizedAnswer):
    """One output, with the optimizations used and the batch that holds it."""

    batch_id: str


class BatchItemAnswer(OptimizedAnswer):
    """One prompt's output, or the error that ended it beside the output so far."""

    error: RequestErrorAnswer | None = None


class GenerateBatchAnswer(BaseModel):
    """Several outputs, with their latency and throughput."""

    batch_id: str
    results: list[BatchItemAnswer]
    total_latency_ms: float
    throughput_tokens_per_sec: float


class SyncAnswer(BaseModel):
    """Several outputs, with their latency and throughput."""

    batch_id: str
    outputs: list[str | list[str] | None]
    total_tokens: int = Field(description="of prompts and outputs")
    latency_ms: float
    throughput_tokens_per_sec: float = Field(description="of outputs")


class ModelInfoAnswer(BaseModel):
    """The engine that runs, as its worker reports it."""

    model_name: str
    architecture: str
    quantization: str = Field(
        description="the format in which the workers hold most weights: f32, bf16, int8, fp8, int4 or nf4;"
        " several if the workers differ"
    )
    device: str
    batch_size: int = Field(description="most Sequences that run at once")
    max_sequence_length: int
    num_parameters: int
    workers: int = Field(description="that are alive")
    details: dict[str, Any]
