"""Defines the overview. Null means that nothing was measured."""

from datetime import datetime

from pydantic import BaseModel, Field

from api.experiments.schemas import ExperimentAnswer
from api.metrics.schemas import Share
from worker.contract.states import BatchStatus


class LiveBatch(BaseModel):
    """A batch that waits or runs."""

    batch_id: str
    name: str | None
    tenant: str
    status: BatchStatus
    paused: bool
    start_after: datetime | None = Field(description="while it waits for that")
    progress: Share = Field(description="by tokens")
    requests: int
    requests_done: int = Field(description="that have a result")
    requests_failed: int
    tokens: int = Field(description="generated so far")
    tokens_per_second: float | None
    eta_seconds: float | None
    created_at: datetime


class FailedBatch(BaseModel):
    """An ended batch in which something failed."""

    batch_id: str
    name: str | None
    tenant: str
    status: BatchStatus
    requests: int
    requests_failed: int | None = Field(description="null if the batch failed before any request did")
    error_code: str | None = Field(description="why the batch stopped itself, or of one of its last requests")
    error_message: str | None
    finished_at: datetime | None


class ShownExperiment(ExperimentAnswer):
    """An experiment of any tenant."""

    tenant: str


class WorkerAnswer(BaseModel):
    """A worker that is alive."""

    name: str
    queue: str
    slots: int = Field(description="tasks it can run at once; 0: it is loading its model")
    model: str | None
    device: str | None
    occupancy: Share | None = Field(description="sequences in a step, of those it has room for")
    tokens_per_second: float | None = Field(description="generated")
    device_busy: Share | None = Field(description="of the time, in which a step ran")
    cpu_busy: Share | None = Field(description="of the machine's cores")
    kv_occupancy: Share | None = Field(description="blocks of the KV cache that sequences hold now")
    prefix_hit_rate: Share | None = Field(description="of prompt tokens, since the process was started")
    prefix_evictions: int | None
    started_at: datetime
    seen_at: datetime


class FailingReceiverAnswer(BaseModel):
    """A webhook receiver that has failed the last deliveries."""

    receiver: str = Field(description="an endpoint's address, or a tenant and where its callbacks go")
    failures_in_a_row: int
    paused_until: datetime | None
    deliveries_waiting: int


class DeliveriesAnswer(BaseModel):
    """The state of webhook deliveries, and the failing receivers."""

    waiting: int = Field(description="for their first attempt")
    retrying: int
    failed: int = Field(description="dead letters")
    failing_receivers: list[FailingReceiverAnswer]


class Overview(BaseModel):
    """The current state of the whole deployment, over all tenants."""

    window_seconds: float = Field(description="what rates of workers are measured over, at most")
    tokens_waiting: int = Field(description="of live batches: prompts, and outputs at their longest")
    batches: list[LiveBatch] = Field(description="running ones first")
    experiments: list[ShownExperiment] = Field(description="the newest first")
    failures: list[FailedBatch] = Field(description="the last ended first")
    workers: list[WorkerAnswer]
    deliveries: DeliveriesAnswer
