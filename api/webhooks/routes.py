"""Serves /v1/webhooks: endpoints, events, attempts, replay."""

import json
from datetime import timedelta
from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query

from api.dependencies import ADMIN, READ, SUBMIT, CallerDependency, ServicesDependency
from api.errors import documented
from api.inputs.cursors import After
from api.inputs.schema import Text
from api.webhooks import service
from api.webhooks.schemas import (
    AttemptList,
    DeliveryAttemptAnswer,
    EndpointAnswer,
    EndpointChange,
    EndpointPage,
    EndpointWithSecret,
    EventAnswer,
    EventPage,
    EventWithPayload,
    NewEndpointBody,
    Replay,
    Replayed,
    Rotation,
)
from worker.contract.states import EventState
from worker.store.webhooks.delivery_log import EventFilter, EventView
from worker.store.webhooks.endpoints import EndpointView

router = APIRouter(prefix="/v1/webhooks", tags=["webhooks"])


def _tenant(caller: CallerDependency) -> str:
    return caller.tenant_id


Tenant = Annotated[str, Depends(_tenant)]
EndpointId = Annotated[Text, Path(examples=["we_5f1c0e7f7c0b4d0b8a3b5f0e9d8c7b6a"], max_length=64)]
EventId = Annotated[Text, Path(examples=["evt_0d9c6d1f7a5b4c7f8f7b6f9f4c1e2a3b"], max_length=64)]
Limit = Annotated[int, Query(ge=1, le=100)]


@router.post(
    "/endpoints",
    dependencies=[ADMIN],
    status_code=HTTPStatus.CREATED,
    responses=documented(400, 413, 422, 501, 503),
    summary="Register an endpoint",
)
def create_endpoint(
    body: NewEndpointBody, services: ServicesDependency, tenant: Tenant
) -> EndpointWithSecret:
    """Register a receiver of events. Only this answer shows its secret."""
    view, secret = service.register(services, tenant, body)
    return EndpointWithSecret(**_endpoint(view).model_dump(), secret=secret)


@router.get("/endpoints", dependencies=[READ], responses=documented(404, 422, 503), summary="List endpoints")
def list_endpoints(
    services: ServicesDependency, tenant: Tenant, after: After = None, limit: Limit = 20
) -> EndpointPage:
    """Return registered endpoints, oldest first."""
    found, has_more = service.page(services, tenant, after=after, limit=limit)
    return EndpointPage(data=[_endpoint(view) for view in found], has_more=has_more)


@router.get(
    "/endpoints/{endpoint_id}",
    dependencies=[READ],
    responses=documented(404, 422, 503),
    summary="Look at an endpoint",
)
def get_endpoint(endpoint_id: EndpointId, services: ServicesDependency, tenant: Tenant) -> EndpointAnswer:
    """Return an endpoint without its secret."""
    return _endpoint(service.get(services, tenant, endpoint_id))


@router.patch(
    "/endpoints/{endpoint_id}",
    dependencies=[ADMIN],
    responses=documented(404, 422, 503),
    summary="Change an endpoint",
)
def change_endpoint(
    endpoint_id: EndpointId, body: EndpointChange, services: ServicesDependency, tenant: Tenant
) -> EndpointAnswer:
    """Change the given fields. Disabling makes pending deliveries dead letters, which can be replayed."""
    return _endpoint(service.change(services, tenant, endpoint_id, body))


@router.delete(
    "/endpoints/{endpoint_id}",
    dependencies=[ADMIN],
    status_code=HTTPStatus.NO_CONTENT,
    responses=documented(404, 422, 503),
    summary="Delete an endpoint",
)
def delete_endpoint(endpoint_id: EndpointId, services: ServicesDependency, tenant: Tenant) -> None:
    """Delete an endpoint and its secret. Its past deliveries stay in the delivery log."""
    service.forget(services, tenant, endpoint_id)


@router.post(
    "/endpoints/{endpoint_id}/rotate",
    dependencies=[ADMIN],
    responses=documented(404, 422, 501, 503),
    summary="Change an endpoint's secret",
)
def rotate_secret(
    endpoint_id: EndpointId, services: ServicesDependency, tenant: Tenant, body: Rotation | None = None
) -> EndpointWithSecret:
    """Make a new secret, shown only here. Until the overlap ends, each event carries both signatures."""
    overlap = timedelta(seconds=(body or Rotation()).overlap_seconds)
    view, secret = service.rotate(services, tenant, endpoint_id, overlap=overlap)
    return EndpointWithSecret(**_endpoint(view).model_dump(), secret=secret)


@router.post(
    "/endpoints/{endpoint_id}/ping",
    dependencies=[SUBMIT],
    status_code=HTTPStatus.ACCEPTED,
    responses=documented(404, 422, 503),
    summary="Send a test event",
)
def ping_endpoint(endpoint_id: EndpointId, services: ServicesDependency, tenant: Tenant) -> EventAnswer:
    """Send `webhook.ping` as any other event; its attempts show how the endpoint answered."""
    return _event(service.ping(services, tenant, endpoint_id))


@router.post(
    "/endpoints/{endpoint_id}/replay",
    dependencies=[SUBMIT],
    status_code=HTTPStatus.ACCEPTED,
    responses=documented(404, 422, 503),
    summary="Send an endpoint's dead letters again",
)
def replay_dead_letters(endpoint_id: EndpointId, services: ServicesDependency, tenant: Tenant) -> Replayed:
    """Send an endpoint's failed deliveries again, oldest first, at most 1,000 per call."""
    return Replayed(replayed=service.replay_failed(services, tenant, endpoint_id))


@router.get("/events", dependencies=[READ], responses=documented(404, 422, 503), summary="List events")
def list_events(
    services: ServicesDependency,
    tenant: Tenant,
    state: Annotated[
        EventState | None,
        Query(description="Only events with a delivery in this state; `failed` lists the dead letters."),
    ] = None,
    endpoint_id: Annotated[Text | None, Query(max_length=64)] = None,
    batch_id: Annotated[Text | None, Query(max_length=64)] = None,
    after: After = None,
    limit: Limit = 20,
) -> EventPage:
    """Return events with the state of their deliveries, newest first."""
    wanted = EventFilter(state=state, endpoint_id=endpoint_id, batch_id=batch_id)
    found, has_more = service.events(services, tenant, wanted, after=after, limit=limit)
    return EventPage(data=[_event(view) for view in found], has_more=has_more)


@router.get(
    "/events/{event_id}", dependencies=[READ], responses=documented(404, 422, 503), summary="Look at an event"
)
def get_event(event_id: EventId, services: ServicesDependency, tenant: Tenant) -> EventWithPayload:
    """Return an event with its payload and its deliveries."""
    view = service.event(services, tenant, event_id)
    return EventWithPayload(**_event(view).model_dump(), payload=json.loads(view.body))


@router.get(
    "/events/{event_id}/attempts",
    dependencies=[READ],
    responses=documented(404, 422, 503),
    summary="Read the delivery log",
)
def list_attempts(event_id: EventId, services: ServicesDependency, tenant: Tenant) -> AttemptList:
    """Return every attempt at an event: its time, duration and outcome."""
    found = service.attempts(services, tenant, event_id)
    return AttemptList(
        data=[DeliveryAttemptAnswer.model_validate(attempt, from_attributes=True) for attempt in found]
    )


@router.post(
    "/events/{event_id}/replay",
    dependencies=[SUBMIT],
    status_code=HTTPStatus.ACCEPTED,
    responses=documented(404, 422, 503),
    summary="Send an event again",
)
def replay_event(
    event_id: EventId, services: ServicesDependency, tenant: Tenant, body: Replay | None = None
) -> EventAnswer:
    """Send an event again at once, with the same `webhook-id`, whether it was delivered or not."""
    return _event(service.replay(services, tenant, event_id, body.endpoint_id if body else None))


def _endpoint(view: EndpointView) -> EndpointAnswer:
    return EndpointAnswer.model_validate(view, from_attributes=True)


def _event(view: EventView) -> EventAnswer:
    return EventAnswer.model_validate(view, from_attributes=True)
