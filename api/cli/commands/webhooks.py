"""Defines `headrace webhooks`: endpoints, events, their deliveries, and replays."""

import sys
from typing import Annotated, Any

import typer

from api.cli.connection import connection, given
from api.cli.show import AsJson, print_json, print_record, print_table
from worker.contract.states import EventState

app = typer.Typer(help="Manage webhook endpoints, and look at what was sent to them.", no_args_is_help=True)

ENDPOINTS, EVENTS = "/v1/webhooks/endpoints", "/v1/webhooks/events"

EndpointId = Annotated[str, typer.Argument(help="The endpoint's id, we_...")]
EventId = Annotated[str, typer.Argument(help="The event's id, evt_...")]
Limit = Annotated[int, typer.Option(min=1, max=100, help="The number of entries on a page.")]
After = Annotated[str | None, typer.Option(help="The last id of the page before.")]


@app.command("list")
def list_endpoints(
    context: typer.Context, limit: Limit = 100, after: After = None, as_json: AsJson = False
) -> None:
    """List the registered endpoints, the oldest first."""
    page = connection(context).call("GET", ENDPOINTS, params=given(limit=limit, after=after))
    columns = ("id", "url", "event_types", "enabled", "description")
    _show_page(page, columns, as_json=as_json)


@app.command("create")
def create(
    context: typer.Context,
    url: Annotated[str, typer.Argument(help="The URL that Headrace sends events to.")],
    event: Annotated[
        list[str] | None,
        typer.Option(help="An event to send, such as batch.completed. May be repeated. Default: all."),
    ] = None,
    description: Annotated[str | None, typer.Option(help="A note for yourself.")] = None,
    as_json: AsJson = False,
) -> None:
    """Register an endpoint and print its signing secret, which is shown only once."""
    body = given(url=url, event_types=event, description=description)
    _show_secret(connection(context).call("POST", ENDPOINTS, json=body), as_json=as_json)


@app.command("rotate")
def rotate(
    context: typer.Context,
    endpoint_id: EndpointId,
    overlap_seconds: Annotated[
        int | None,
        typer.Option(min=0, help="For so long events carry both signatures. Default: one day."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Give an endpoint a new signing secret and print it, which is shown only once."""
    path, body = f"{ENDPOINTS}/{endpoint_id}/rotate", given(overlap_seconds=overlap_seconds)
    _show_secret(connection(context).call("POST", path, json=body), as_json=as_json)


@app.command("enable")
def enable(context: typer.Context, endpoint_id: EndpointId, as_json: AsJson = False) -> None:
    """Send events to a disabled endpoint again."""
    _switch(context, endpoint_id, enabled=True, as_json=as_json)


@app.command("disable")
def disable(context: typer.Context, endpoint_id: EndpointId, as_json: AsJson = False) -> None:
    """Stop sending events to an endpoint. What waits for it fails, and can be replayed."""
    _switch(context, endpoint_id, enabled=False, as_json=as_json)


@app.command("delete")
def delete(context: typer.Context, endpoint_id: EndpointId, as_json: AsJson = False) -> None:
    """Delete an endpoint and its secret."""
    connection(context).call("DELETE", f"{ENDPOINTS}/{endpoint_id}")
    if as_json:
        print_json({"id": endpoint_id, "deleted": True})


@app.command("ping")
def ping(context: typer.Context, endpoint_id: EndpointId, as_json: AsJson = False) -> None:
    """Send a test event to an endpoint."""
    _show(connection(context).call("POST", f"{ENDPOINTS}/{endpoint_id}/ping"), as_json=as_json)


@app.command("events")
def list_events(
    context: typer.Context,
    state: Annotated[
        EventState | None, typer.Option(help="List only events with a delivery in this state.")
    ] = None,
    endpoint: Annotated[str | None, typer.Option(help="List only events for this endpoint.")] = None,
    batch: Annotated[str | None, typer.Option(help="List only events of this batch.")] = None,
    limit: Limit = 20,
    after: After = None,
    as_json: AsJson = False,
) -> None:
    """List events with the state of their deliveries, the newest first."""
    params = given(limit=limit, after=after, state=state, endpoint_id=endpoint, batch_id=batch)
    page = connection(context).call("GET", EVENTS, params=params)
    rows = [event | {"deliveries": _summary(event["deliveries"])} for event in page["data"]]
    columns = ("id", "type", "batch_id", "deliveries", "created_at")
    _show_page(page if as_json else page | {"data": rows}, columns, as_json=as_json)


@app.command("deliveries")
def list_deliveries(context: typer.Context, event_id: EventId, as_json: AsJson = False) -> None:
    """List every attempt to deliver an event."""
    page = connection(context).call("GET", f"{EVENTS}/{event_id}/attempts")
    columns = ("number", "endpoint_id", "created_at", "duration_ms", "status_code", "error")
    _show_page(page, columns, as_json=as_json)


@app.command("replay")
def replay(
    context: typer.Context,
    target: Annotated[
        str, typer.Argument(help="An event's id, or an endpoint's id for all its failed deliveries.")
    ],
    endpoint: Annotated[str | None, typer.Option(help="Send the event to this endpoint only.")] = None,
    as_json: AsJson = False,
) -> None:
    """Send an event again, or all failed deliveries of an endpoint."""
    if target.startswith("we_"):
        answer = connection(context).call("POST", f"{ENDPOINTS}/{target}/replay")
    else:
        body = given(endpoint_id=endpoint)
        answer = connection(context).call("POST", f"{EVENTS}/{target}/replay", json=body)
    _show(answer, as_json=as_json)


def _switch(context: typer.Context, endpoint_id: str, *, enabled: bool, as_json: bool) -> None:
    path = f"{ENDPOINTS}/{endpoint_id}"
    _show(connection(context).call("PATCH", path, json={"enabled": enabled}), as_json=as_json)


def _summary(deliveries: list[dict[str, Any]]) -> str:
    return ", ".join(f"{one['state']} {one['endpoint_id'] or one['url']}" for one in deliveries) or "-"


def _show_page(page: dict[str, Any], columns: tuple[str, ...], *, as_json: bool) -> None:
    if as_json:
        print_json(page)
        return
    headings = [column.replace("_", " ").upper() for column in columns]
    print_table(headings, ([entry[column] for column in columns] for entry in page["data"]))
    if page.get("has_more"):
        sys.stderr.write(f"more: add --after {page['data'][-1]['id']}\n")


def _show(answer: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(answer)
        return
    shown = {name: value for name, value in answer.items() if name not in {"object", "deliveries"}}
    if "deliveries" in answer:
        shown["deliveries"] = _summary(answer["deliveries"])
    print_record(shown)


def _show_secret(answer: dict[str, Any], *, as_json: bool) -> None:
    _show(answer, as_json=as_json)
    if not as_json:
        sys.stderr.write("Store the secret now. Headrace does not show it again.\n")
