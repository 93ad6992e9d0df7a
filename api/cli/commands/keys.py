"""Defines `headrace keys`: create, list, rotate and revoke API keys."""

import re
import sys
from collections.abc import Iterable
from datetime import timedelta
from typing import Annotated, Any

import typer
from sqlalchemy.orm import Session

from api.cli.commands.administration import administration, check_tenant_name, note, server
from api.cli.connection import given
from api.cli.show import AsJson, fail, print_json, print_table
from api.keys.schemas import KeyAnswer
from worker.contract.access import DEFAULT_TENANT, NOBODY, Scope
from worker.store.tenants import api_keys, tenants

app = typer.Typer(
    help="Manage API keys: through the API if HEADRACE_API_KEY is set, else in the database.",
    no_args_is_help=True,
)

DURATION = re.compile(r"^([1-9][0-9]{0,4})([mhd])$")
UNITS = {"m": "minutes", "h": "hours", "d": "days"}
COLUMNS = ("prefix", "tenant", "name", "scopes", "created_at", "expires_at", "revoked_at", "last_used_at")
HEADINGS = ("PREFIX", "TENANT", "NAME", "SCOPES", "CREATED", "EXPIRES", "REVOKED", "LAST USED")


def _duration(text: str) -> timedelta:
    match = DURATION.match(text)
    if match is None:
        raise typer.BadParameter("Write a number and a unit, such as 30m, 12h or 90d.")
    return timedelta(**{UNITS[match[2]]: int(match[1])})


Prefix = Annotated[str, typer.Argument(help="The key's prefix, hr_..., as `headrace keys list` shows it.")]


@app.command("create")
def create(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="What the key is for.")] = "first",
    tenant: Annotated[
        str | None,
        typer.Option(help="Whose key it is. The tenant is created if need be. Default: yours, or `default`."),
    ] = None,
    scope: Annotated[
        list[Scope] | None,
        typer.Option(
            help="What the key may do. May be repeated. `admin` administers its tenant, `deployment` all"
            " tenants. Default: read and submit."
        ),
    ] = None,
    expires: Annotated[
        timedelta | None, typer.Option(parser=_duration, metavar="90d", help="How long the key works.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Create a key and print it, once. Headrace stores only a hash of it."""
    if tenant is not None:
        check_tenant_name(tenant)
    scopes = scope or [Scope.READ, Scope.SUBMIT]
    if api := server(context):
        seconds = None if expires is None else int(expires.total_seconds())
        body = given(name=name, tenant=tenant, scopes=scopes, expires_in_seconds=seconds)
        made = api.call("POST", "/v1/keys", json=body)
        _show_once(made["key"], made["prefix"], as_json=as_json)
        return
    owner = tenant or DEFAULT_TENANT
    with administration() as session:
        if tenants.create(session, owner):
            note(session, "tenant.create", owner, tenant=owner)
        key = api_keys.create(session, owner, name=name, scopes=scopes, expires_in=expires)
        prefix = api_keys.prefix_of(key)
        note(session, "key.create", prefix, tenant=owner, name=name, scopes=sorted(set(scopes)))
    _show_once(key, prefix, as_json=as_json)


@app.command("list")
def list_keys(
    context: typer.Context,
    tenant: Annotated[str | None, typer.Option(help="List only the keys of this tenant.")] = None,
    as_json: AsJson = False,
) -> None:
    """List keys without their secret part."""
    if api := server(context):
        listed: Iterable[Any] = api.call("GET", "/v1/keys", params=given(tenant=tenant))["data"]
    else:
        with administration() as session:
            listed = api_keys.every(session, tenant)
    found = [KeyAnswer.model_validate(key) for key in listed]
    if as_json:
        print_json([key.model_dump(mode="json") for key in found])
    else:
        print_table(HEADINGS, ([getattr(key, column) for column in COLUMNS] for key in found))


@app.command("rotate")
def rotate(
    context: typer.Context,
    prefix: Prefix,
    keep: Annotated[
        timedelta, typer.Option(parser=_duration, metavar="24h", help="How long the old key still works.")
    ] = "24h",  # type: ignore[assignment] # the parser's input
    as_json: AsJson = False,
) -> None:
    """Create a key with the rights of another. The old key works for a while longer."""
    seconds = int(keep.total_seconds())
    if api := server(context):
        made = api.call("POST", f"/v1/keys/{prefix}/rotate", json={"overlap_seconds": seconds})
        _show_once(made["key"], made["prefix"], as_json=as_json)
        return
    with administration() as session:
        key = api_keys.rotate(session, prefix, old_works_for=keep)
        if key is None:
            fail(f"There is no key {prefix} that still works. `headrace keys list` shows the keys.")
        new_prefix = api_keys.prefix_of(key)
        tenant = _tenant_of(session, prefix)
        note(session, "key.rotate", prefix, tenant=tenant, new=new_prefix, old_works_seconds=seconds)
    _show_once(key, new_prefix, as_json=as_json)


@app.command("revoke")
def revoke(context: typer.Context, prefix: Prefix, as_json: AsJson = False) -> None:
    """Revoke a key at once."""
    if api := server(context):
        api.call("DELETE", f"/v1/keys/{prefix}")
    else:
        with administration() as session:
            if not api_keys.revoke(session, prefix):
                fail(f"There is no key {prefix} to revoke. `headrace keys list` shows the keys.")
            note(session, "key.revoke", prefix, tenant=_tenant_of(session, prefix))
    if as_json:
        print_json({"prefix": prefix, "revoked": True})


def _tenant_of(session: Session, prefix: str) -> str:
    key = api_keys.find(session, prefix)
    return NOBODY if key is None else key.tenant_id


def _show_once(key: str, prefix: str, *, as_json: bool) -> None:
    if as_json:
        print_json({"key": key, "prefix": prefix})
    else:
        sys.stdout.write(f"{key}\n")
        sys.stderr.write(
            "Store the key now. Headrace does not show it again. `headrace` reads it from HEADRACE_API_KEY.\n"
        )
