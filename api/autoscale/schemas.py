"""Defines the answer of /v1/autoscale."""

from datetime import datetime
from typing import Literal

from pydantic import BaseModel, Field

from worker.store.watching.scaling import WantedWorkers


class ModelScaling(BaseModel):
    """How many gpu workers one model needs, and why."""

    model: str
    revision: str = Field(description="fingerprint of the model's files")
    wanted: int = Field(description="gpu workers, on demand and spot together")
    on_demand: int = Field(description="of them, on demand: their work is due too soon to replace a lost one")
    spot: int = Field(description="of them, on spot capacity")
    ready: int = Field(description="live workers that take work")
    loading: int = Field(description="live workers that load the model")
    requests: int = Field(description="of live batches, without a result")
    tokens: int = Field(description="of prompts and expected outputs, still to be computed")
    worker_seconds: float = Field(
        description="time of one worker for them, at the upper end of the estimate; 0 although there are"
        " requests: no worker has measured its speed yet"
    )
    due_at: datetime | None = Field(description="the earliest deadline of this work")
    cold_start_seconds: float | None = Field(
        description="measured, from a higher wish to enough ready workers; null: not yet"
    )
    decided_at: datetime

    @classmethod
    def of(cls, decision: WantedWorkers) -> "ModelScaling":
        """Return a decision as the operator sees it."""
        return cls(
            model=decision.model_name,
            revision=decision.model_fingerprint,
            wanted=decision.wanted,
            on_demand=decision.on_demand,
            spot=decision.spot,
            ready=decision.num_ready,
            loading=decision.num_loading,
            requests=decision.num_requests,
            tokens=decision.num_tokens,
            worker_seconds=round(decision.work_seconds, 3),
            due_at=decision.due_at,
            cold_start_seconds=decision.cold_start_seconds,
            decided_at=decision.decided_at,
        )


class ScalingReport(BaseModel):
    """The dispatcher's last decision on each model."""

    object: Literal["list"] = "list"
    data: list[ModelScaling]
