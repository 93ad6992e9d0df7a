"""Defines `headrace keys`: create, list, rotate and revoke API keys, directly in the database."""

import re
import sys
from dataclasses import asdict
from datetime import timedelta
from typing import Annotated

import typer
from sqlalchemy.orm import Session

from api.cli.commands.administration import administration, check_tenant_name, note
from api.cli.show import AsJson, fail, print_json, print_table
from worker.contract.access import DEFAULT_TENANT, NOBODY, Scope
from worker.store.tenants import api_keys, tenants

app = typer.Typer(help="API keys.", no_args_is_help=True)

DURATION = re.compile(r"^([1-9][0-9]{0,4})([mhd])$")
UNITS = {"m": "minutes", "h": "hours", "d": "days"}


def _duration(text: str) -> timedelta:
    match = DURATION.match(text)
    if match is None:
        raise typer.BadParameter("write it as 30m, 12h or 90d")
    return timedelta(**{UNITS[match[2]]: int(match[1])})


Prefix = Annotated[str, typer.Argument(help="hr_..., as `headrace keys list` shows it.")]


@app.command("create")
def create(
    name: Annotated[str, typer.Argument(help="What the key is for.")] = "first",
    tenant: Annotated[str, typer.Option(help="Whose key it is; made if need be.")] = DEFAULT_TENANT,
    scope: Annotated[
        list[Scope] | None,
        typer.Option(help="admin: of the tenant. deployment: of all tenants. Default: read and submit."),
    ] = None,
    expires: Annotated[
        timedelta | None, typer.Option(parser=_duration, metavar="90d", help="How long it is good.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Create a key and print it once; only its hash is kept."""
    check_tenant_name(tenant)
    scopes = scope or [Scope.READ, Scope.SUBMIT]
    with administration() as session:
        if tenants.create(session, tenant):
            note(session, "tenant.create", tenant, tenant=tenant)
        key = api_keys.create(session, tenant, name=name, scopes=scopes, expires_in=expires)
        prefix = api_keys.prefix_of(key)
        note(session, "key.create", prefix, tenant=tenant, name=name, scopes=sorted(set(scopes)))
    _show_once(key, prefix, as_json=as_json)


@app.command("list")
def list_keys(
    tenant: Annotated[str | None, typer.Option(help="Only this tenant's.")] = None, as_json: AsJson = False
) -> None:
    """List keys without their secret part."""
    with administration() as session:
        found = api_keys.every(session, tenant)
    if as_json:
        print_json([asdict(key) for key in found])
        return
    print_table(
        ["PREFIX", "TENANT", "NAME", "SCOPES", "CREATED", "EXPIRES", "REVOKED", "LAST USED"],
        (
            (
                k.prefix,
                k.tenant_id,
                k.name,
                k.scopes,
                k.created_at,
                k.expires_at,
                k.revoked_at,
                k.last_used_at,
            )
            for k in found
        ),
    )


@app.command("rotate")
def rotate(
    prefix: Prefix,
    keep: Annotated[
        timedelta, typer.Option(parser=_duration, metavar="24h", help="How long the old one goes on.")
    ] = "24h",  # type: ignore[assignment] # the parser's input
    as_json: AsJson = False,
) -> None:
    """Create a key with the rights of another; the old key works for a while longer."""
    with administration() as session:
        key = api_keys.rotate(session, prefix, old_works_for=keep)
        if key is None:
            fail(f"no key {prefix} that is still good: `headrace keys list` shows them")
        new_prefix = api_keys.prefix_of(key)
        seconds = int(keep.total_seconds())
        tenant = _tenant_of(session, prefix)
        note(session, "key.rotate", prefix, tenant=tenant, new=new_prefix, old_works_seconds=seconds)
    _show_once(key, new_prefix, as_json=as_json)


@app.command("revoke")
def revoke(prefix: Prefix, as_json: AsJson = False) -> None:
    """Revoke a key at once."""
    with administration() as session:
        if not api_keys.revoke(session, prefix):
            fail(f"no key {prefix}, or it was revoked before: `headrace keys list` shows them")
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
            "Keep it: it is not shown again. HEADRACE_API_KEY is where `headrace` looks for it.\n"
        )
