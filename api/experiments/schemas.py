"""Defines an experiment as a client reads it."""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import BaseModel, Field

from api.batches.experiments import ExperimentFields
from api.figures import Cost
from api.inputs.schema import NonEmptyText
from worker.contract.states import ExperimentMode, ExperimentStatus
from worker.quality.comparison import Verdict


class ExperimentSubmission(ExperimentFields):
    """An experiment on a batch that runs already."""

    batch_id: Annotated[NonEmptyText, Field(max_length=64)]


class ExperimentSide(BaseModel):
    """One of the two models of an experiment, over the requests that are compared."""

    model: str | None = Field(description="its name")
    revision: str | None = Field(description="a fingerprint of its files")
    quality: float | None = Field(description="the share of right outputs; null: none is judged yet")
    output_tokens: int = Field(description="of requests that both computed, so without copies")
    device_seconds: float = Field(description="of the same; one is a cost unit")
    cost: Cost = Field(description="of the same, at the dispatcher's prices when they were judged")
    tokens_per_device_second: float | None


class ExperimentMeans(BaseModel):
    """Something of each compared request, as its mean over those of each side. Null: none has it."""

    a: float | None
    b: float | None
    interval: tuple[float, float] | None = Field(description="of the difference, B's minus A's")


class ExperimentAnswer(BaseModel):
    """An experiment: B, another model, beside A, the batch's, on the same requests, or on pairs of them."""

    experiment_id: str
    batch_id: str
    mode: ExperimentMode
    status: ExperimentStatus
    verdict: Verdict = Field(description="of B; it holds however often one looks")
    more_requests: int | None = Field(
        description="with a reference answer, that would find the loss; null: there is a verdict"
    )
    requests: int = Field(
        description="that run under both; in mode ab, under B, each compared with one under A. Of a file:"
        " 0 until its lines are read, in the shadow all of them"
    )
    expected: int = Field(description="of these, with a reference answer")
    planned: int = Field(description="with a reference answer, that find the loss, as said beforehand")
    compared: int = Field(description="answered by both, or failed")
    judged: int = Field(description="of these, with a reference answer")
    agreement: float | None = Field(description="the share of equal outputs; null in mode ab")
    difference: float | None = Field(description="of the shares of right outputs, B's minus A's")
    interval: tuple[float, float] = Field(description="of the difference; it holds however often one looks")
    failed: ExperimentMeans = Field(
        description="the shares that failed; the interval holds however often one looks"
    )
    valid: ExperimentMeans = Field(
        description="of those that ask for a format, the shares whose output is whole and in it; likewise"
    )
    output_length: ExperimentMeans = Field(
        description="output tokens of those that both computed; the interval is for one look"
    )
    speedup: float | None = Field(description="B's tokens a device second, as a multiple of A's")
    cost_change: float | None = Field(
        description="by which B costs more, as a share of A's cost; in device seconds if there are no prices"
    )
    a: ExperimentSide
    b: ExperimentSide
    share: float
    allowed_loss: float
    resolution: float
    created_at: datetime
    ended_at: datetime | None


class ExperimentPage(BaseModel):
    """Experiments, the newest first. Pass `last_id` as `after` to read on."""

    object: Literal["list"] = "list"
    data: list[ExperimentAnswer]
    last_id: str | None
    has_more: bool
