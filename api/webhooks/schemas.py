"""Defines the bodies of the webhook routes."""

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, AliasChoices, BaseModel, ConfigDict, Field

from api.inputs.schema import NonEmptyText, Schema, Text
from worker.contract.events import BATCH_EVENTS
from worker.contract.states import EventState

MAX_OVERLAP_SECONDS = 7 * 86_400
DAY_SECONDS = 86_400


def _event_types(names: list[str]) -> list[str]:
    for i, name in enumerate(names):
        if name not in BATCH_EVENTS:
            raise ValueError(f"item {i} is none of {', '.join(BATCH_EVENTS)}")
    return sorted(set(names))


Url = Annotated[NonEmptyText, Field(description="https, or http to a network the operator allows.")]
EventTypes = Annotated[
    list[NonEmptyText], Field(min_length=1, max_length=len(BATCH_EVENTS)), AfterValidator(_event_types)
]
Description = Annotated[Text, Field(max_length=500)]


class NewEndpointBody(Schema):
    """An endpoint to register."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"url": "https://example.com/hooks/headrace", "event_types": ["batch.completed"]},
            ]
        }
    )

    url: Url
    event_types: EventTypes = Field(default=list(BATCH_EVENTS), validate_default=True)
    description: Description = ""
    enabled: bool = True


class EndpointChange(Schema):
    """Changes to an endpoint; fields left out stay as they are."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"enabled": False}]})

    url: Url | None = None
    event_types: EventTypes | None = None
    description: Description | None = None
    enabled: bool | None = None


class Rotation(Schema):
    """Options for changing an endpoint's secret."""

    overlap_seconds: Annotated[
        int,
        Field(ge=0, le=MAX_OVERLAP_SECONDS, description="For how long the old secret signs along."),
    ] = DAY_SECONDS


class Replay(Schema):
    """Options for sending an event again."""

    endpoint_id: NonEmptyText | None = Field(
        default=None, description="Only to this endpoint; left out: to all that the event was for."
    )


class EndpointAnswer(BaseModel):
    """A registered endpoint."""

    id: str
    object: Literal["webhook_endpoint"] = "webhook_endpoint"
    url: str
    event_types: list[str]
    description: str
    enabled: bool = Field(validation_alias=AliasChoices("enabled", "is_enabled"))
    disabled_reason: str | None
    old_secret_expires_at: datetime | None = Field(description="null: one secret signs")
    created_at: datetime


class EndpointWithSecret(EndpointAnswer):
    """A registered endpoint with its secret, which is shown only once."""

    secret: str


class EndpointPage(BaseModel):
    """Endpoints, oldest first."""

    data: list[EndpointAnswer]
    has_more: bool


class DeliveryAnswer(BaseModel):
    """The state of an event's delivery to one receiver."""

    endpoint_id: str | None = Field(description="null: the batch's own callback")
    url: str
    state: EventState
    attempts: int
    next_attempt_at: datetime | None
    last_status_code: int | None
    last_error: str | None


class EventAnswer(BaseModel):
    """An event and its deliveries. `id` is the `webhook-id` of every one of them."""

    id: str
    object: Literal["webhook_event"] = "webhook_event"
    type: str
    batch_id: str | None
    created_at: datetime
    deliveries: list[DeliveryAnswer]


class EventWithPayload(EventAnswer):
    """An event with the payload that is sent."""

    payload: dict[str, Any]


class EventPage(BaseModel):
    """Events, newest first."""

    data: list[EventAnswer]
    has_more: bool


class DeliveryAttemptAnswer(BaseModel):
    """One try at a delivery."""

    number: int
    endpoint_id: str | None
    created_at: datetime
    duration_ms: int
    status_code: int | None
    error: str | None


class AttemptList(BaseModel):
    """Every attempt at an event, in order."""

    data: list[DeliveryAttemptAnswer]


class Replayed(BaseModel):
    """The number of deliveries that are sent again."""

    replayed: int
