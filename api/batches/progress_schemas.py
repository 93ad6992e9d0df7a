"""Defines the answers about a batch's progress: ETA, reason for waiting, attempts."""

from datetime import datetime
from typing import Literal

from pydantic import BaseModel, Field

from worker.contract.states import AttemptCause


class EtaRange(BaseModel):
    """A range that contains the end nine times in ten; it narrows as the end comes near."""

    low_seconds: float
    high_seconds: float


class WaitingAnswer(BaseModel):
    """The reason why no request of a batch runs now, and the batch's place in line."""

    reason: Literal[
        "paused",
        "scheduled",
        "reading_file",
        "file_unread",
        "no_worker",
        "model_loading",
        "model_unloaded",
        "in_line",
        "starting",
        "stopping",
    ]
    message: str
    position: int | None = Field(default=None, description="in line, from 1")
    batches_ahead: int | None = None
    requests_ahead: int | None = None


class RequestAttemptAnswer(BaseModel):
    """An attempt at a request that brought no result."""

    number: int
    worker: str | None
    cause: AttemptCause
    ended_at: datetime
