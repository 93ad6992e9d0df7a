"""Defines the estimate of a batch."""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from api.batches.schemas import Window
from api.files.lines import to_path
from api.inputs.schema import JsonObject, NonEmptyText, Priority, Schema
from api.openai.bodies import Endpoint


def _upper(method: object) -> object:
    return method.upper() if isinstance(method, str) else method


class LineToEstimate(Schema):
    """A line of a file in OpenAI's batch format."""

    custom_id: Annotated[NonEmptyText, Field(max_length=64)]
    method: Annotated[Literal["POST"], BeforeValidator(_upper)]
    url: Annotated[Endpoint, BeforeValidator(to_path)] = Field(strict=False)
    body: JsonObject


class LinesToEstimate(Schema):
    """The lines of a file, as JSON objects, and the options that change when their batch ends."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "lines": [
                        {
                            "custom_id": "row-1",
                            "method": "POST",
                            "url": "/v1/completions",
                            "body": {"model": "demo", "prompt": "import os", "max_tokens": 16},
                        }
                    ],
                    "completion_window": "24h",
                }
            ]
        }
    )

    lines: Annotated[list[LineToEstimate], Field(min_length=1)]
    completion_window: Window | None = None
    priority: Priority = 0


class Guess(BaseModel):
    """An expected value, and a range that contains the true one nine times in ten."""

    low: float
    expected: float
    high: float


class Finish(BaseModel):
    """The time at which the batch would end if it were submitted now."""

    seconds: Guess
    waiting_seconds: float = Field(description="of the expected ones, for work that is ahead of it")
    at: datetime = Field(description="the expected time")
    fits_window: bool | None = Field(description="whether even the slow end is within the window or deadline")
    may_fit_window: bool | None = Field(
        description="whether the fast end is: if not, submitting it is refused as `deadline_unreachable`"
    )


class WorkEstimate(BaseModel):
    """The tokens, time and cost that some requests would take."""

    requests: int
    duplicates: int = Field(description="of them, answered by an identical one")
    input_tokens: int
    max_output_tokens: int
    expected_output_tokens: Guess
    expected_at_limit: int = Field(description="outputs that end because of `max_tokens`, as far as is known")
    learned_from_batches: int = Field(description="recent batches whose output lengths this goes by; 0: none")
    requests_ahead: int = Field(description="of live batches whose priority is not lower")
    workers: int = Field(description="alive now")
    cost_units: Guess | None = Field(
        description="seconds of the device alone; null without a worker, or until its Steps were measured"
    )
    finish: Finish | None = Field(description="null without a worker, or until its Steps were measured")


class ModelEstimate(WorkEstimate):
    """What one of its models would have to run of a batch whose requests name several."""

    name: str
    revision: str


class Estimate(WorkEstimate):
    """The tokens, time and cost that a batch would take. Nothing was stored or queued.

    If the requests name several models, all is summed over these, and `finish` is the last of theirs.
    """

    models: list[ModelEstimate] | None = Field(
        default=None, description="each model's part; null unless the requests name several models"
    )
