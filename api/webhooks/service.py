"""Manages webhook endpoints, and reads and replays events. Each function is one transaction."""

from datetime import timedelta

from api.dependencies import Services
from api.errors import InvalidInputError, NotConfiguredError, NotFoundError
from api.inputs.cursors import cut
from api.inputs.targets import check_url
from api.webhooks.schemas import EndpointChange, NewEndpointBody
from worker.contract.states import EventState
from worker.store.webhooks import deliveries, delivery_log, endpoints, webhooks
from worker.store.webhooks.delivery_log import DeliveryAttemptView, EventFilter, EventView
from worker.store.webhooks.endpoints import EndpointView, NewEndpoint
from worker.webhooks.sealing import Sealer, SealError
from worker.webhooks.signing import new_secret

MAX_ENDPOINTS = 100


def register(services: Services, tenant: str, body: NewEndpointBody) -> tuple[EndpointView, str]:
    """Register an endpoint; return it with its secret.

    Raises:
        InvalidInputError: the address may not be called, or there are too many endpoints.
        NotConfiguredError: no key is configured to seal the secret with.

    """
    check_url(services.settings, body.url, param="url")
    secret, sealed = _new_secret(services)
    with services.store.transaction() as session:
        if endpoints.count(session, tenant) >= MAX_ENDPOINTS:
            raise InvalidInputError(
                f"The tenant has {MAX_ENDPOINTS} endpoints, which is the limit. Delete one first.",
                code="too_many_endpoints",
            )
        view = endpoints.create(
            session,
            tenant,
            NewEndpoint(
                url=body.url,
                event_types=body.event_types,
                description=body.description,
                is_enabled=body.enabled,
                sealed_secret=sealed,
            ),
        )
    return view, secret


def get(services: Services, tenant: str, endpoint_id: str) -> EndpointView:
    """Return an endpoint.

    Raises:
        NotFoundError: no such endpoint.

    """
    with services.store.transaction() as session:
        return _found(endpoints.get(session, tenant, endpoint_id), endpoint_id)


def page(
    services: Services, tenant: str, *, after: str | None, limit: int
) -> tuple[list[EndpointView], bool]:
    """Return endpoints, and whether there are more; raises UnknownCursorError."""
    with services.store.transaction() as session:
        found = endpoints.page(session, tenant, after=after, limit=limit + 1)
    return cut(found, limit)


def change(services: Services, tenant: str, endpoint_id: str, body: EndpointChange) -> EndpointView:
    """Change the fields that the body sets.

    Raises:
        InvalidInputError: the address may not be called.
        NotFoundError: no such endpoint.

    """
    if body.url is not None:
        check_url(services.settings, body.url, param="url")
    values = body.model_dump(exclude_none=True)
    if "enabled" in values:
        values["is_enabled"] = values.pop("enabled")
    with services.store.transaction() as session:
        return _found(endpoints.change(session, tenant, endpoint_id, values), endpoint_id)


def rotate(
    services: Services, tenant: str, endpoint_id: str, *, overlap: timedelta
) -> tuple[EndpointView, str]:
    """Give an endpoint a new secret; return it with the secret.

    Raises:
        NotFoundError: no such endpoint.
        NotConfiguredError: no key is configured to seal the secret with.

    """
    secret, sealed = _new_secret(services)
    with services.store.transaction() as session:
        view = endpoints.rotate(session, tenant, endpoint_id, sealed_secret=sealed, overlap=overlap)
    return _found(view, endpoint_id), secret


def forget(services: Services, tenant: str, endpoint_id: str) -> None:
    """Delete an endpoint.

    Raises:
        NotFoundError: no such endpoint.

    """
    with services.store.transaction() as session:
        if not endpoints.forget(session, tenant, endpoint_id):
            raise _no_endpoint(endpoint_id)


def ping(services: Services, tenant: str, endpoint_id: str) -> EventView:
    """Send a test event to an endpoint; return the event.

    Raises:
        InvalidInputError: the endpoint is disabled.
        NotFoundError: no such endpoint.

    """
    with services.store.transaction() as session:
        _check_enabled(_found(endpoints.get(session, tenant, endpoint_id), endpoint_id))
        event_id = webhooks.ping(session, tenant, endpoint_id)
        return _found_event(delivery_log.get(session, tenant, event_id), event_id)


def replay_failed(services: Services, tenant: str, endpoint_id: str) -> int:
    """Send an endpoint's dead letters again; return their number.

    Raises:
        InvalidInputError: the endpoint is disabled.
        NotFoundError: no such endpoint.

    """
    with services.store.transaction() as session:
        _check_enabled(_found(endpoints.get(session, tenant, endpoint_id), endpoint_id))
        return deliveries.replay(session, endpoint_id=endpoint_id, states=[EventState.FAILED])


def events(
    services: Services, tenant: str, wanted: EventFilter, *, after: str | None, limit: int
) -> tuple[list[EventView], bool]:
    """Return events, and whether there are more; raises UnknownCursorError."""
    with services.store.transaction() as session:
        found = delivery_log.page(session, tenant, wanted, after=after, limit=limit + 1)
    return cut(found, limit)


def event(services: Services, tenant: str, event_id: str) -> EventView:
    """Return an event.

    Raises:
        NotFoundError: no such event.

    """
    with services.store.transaction() as session:
        return _found_event(delivery_log.get(session, tenant, event_id), event_id)


def attempts(services: Services, tenant: str, event_id: str) -> list[DeliveryAttemptView]:
    """Return every attempt at an event.

    Raises:
        NotFoundError: no such event.

    """
    with services.store.transaction() as session:
        _found_event(delivery_log.get(session, tenant, event_id), event_id)
        return delivery_log.attempts(session, event_id)


def replay(services: Services, tenant: str, event_id: str, endpoint_id: str | None) -> EventView:
    """Send an event again, to one endpoint or to all it was for; return it.

    Raises:
        InvalidInputError: all endpoints that it was for are disabled.
        NotFoundError: no such event, or it was not for this endpoint.

    """
    with services.store.transaction() as session:
        found = _found_event(delivery_log.get(session, tenant, event_id), event_id)
        wanted = [d for d in found.deliveries if endpoint_id is None or d.endpoint_id == endpoint_id]
        if not wanted:
            raise NotFoundError(f"{event_id} was not sent to {endpoint_id}.", param="endpoint_id")
        replayed = deliveries.replay(session, event_id=event_id, endpoint_id=endpoint_id)
        if not replayed and all(d.state is not EventState.SENDING for d in wanted):
            raise InvalidInputError(
                "The endpoints of this event are disabled. Enable one first.", code="endpoint_disabled"
            )
        return _found_event(delivery_log.get(session, tenant, event_id), event_id)


def _new_secret(services: Services) -> tuple[str, str]:
    secret = new_secret()
    try:
        return secret, Sealer(services.settings.secret_keys).seal(secret)
    except SealError as error:
        raise NotConfiguredError(str(error), code="secret_key_missing") from error


def _check_enabled(endpoint: EndpointView) -> None:
    if not endpoint.is_enabled:
        raise InvalidInputError(f"{endpoint.id} is disabled. Enable it first.", code="endpoint_disabled")


def _found(view: EndpointView | None, endpoint_id: str) -> EndpointView:
    if view is None:
        raise _no_endpoint(endpoint_id)
    return view


def _no_endpoint(endpoint_id: str) -> NotFoundError:
    return NotFoundError(f"There is no webhook endpoint {endpoint_id}.", param="endpoint_id")


def _found_event(view: EventView | None, event_id: str) -> EventView:
    if view is None:
        raise NotFoundError(f"There is no webhook event {event_id}.", param="event_id")
    return view
