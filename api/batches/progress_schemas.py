"""The shapes that say how a batch gets on, and why it does not."""

from datetime import datetime
from typing import Literal

from pydantic import BaseModel, Field

from worker.contract.states import AttemptCause


class EtaRange(BaseModel):
    """The end lies between these with about nine chances in ten; they meet as it comes near."""

    low_seconds: float
    high_seconds: float


class Waiting(BaseModel):
    """Why nothing of a batch runs now."""

    reason: Literal[
        "paused",
        "reading_file",
        "file_unread",
        "no_worker",
        "model_loading",
        "in_line",
        "starting",
        "stopping",
    ]
    message: str
    position: int | None = Field(default=None, description="in line, from 1")
    batches_ahead: int | None = None
    requests_ahead: int | None = None


class AttemptAnswer(BaseModel):
    """A try at a request that brought no result."""

    number: int
    worker: str | None
    cause: AttemptCause
    ended_at: datetime
