"""Defines `headrace tenants`: list and change tenants' shares, limits and rights in the database."""

from dataclasses import asdict, fields
from typing import Annotated, Any

import typer

from api.cli.commands.administration import administration, check_tenant_name, note
from api.cli.show import AsJson, fail, print_json, print_table
from worker.store.tenants import tenants
from worker.store.tenants.tenants import Tenant, TenantLimits

app = typer.Typer(help="Tenants: shares and limits.", no_args_is_help=True)

LIMIT_NAMES = tuple(limit.name for limit in fields(TenantLimits))

Name = Annotated[str, typer.Argument(help="The tenant.")]
Limit = Annotated[str | None, typer.Option(metavar="NUMBER|none")]


@app.command("list")
def list_tenants(as_json: AsJson = False) -> None:
    """List tenants with their shares and limits."""
    with administration() as session:
        found = tenants.every(session)
    _show(found, as_json=as_json)


@app.command("set")
def set_tenant(
    name: Name,
    weight: Annotated[int | None, typer.Option(min=1, max=1000, help="Its share beside the others'.")] = None,
    max_batches: Limit = None,
    max_requests: Limit = None,
    max_tokens: Limit = None,
    max_bytes: Limit = None,
    max_file_bytes: Limit = None,
    calls_per_minute: Limit = None,
    semantic_cache: Annotated[
        bool | None,
        typer.Option(
            "--semantic-cache/--no-semantic-cache", help="Whether its batches may ask for the semantic cache."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Change a tenant's share, limits and rights; `none` removes a limit. Options left out stay."""
    check_tenant_name(name)
    texts = (max_batches, max_requests, max_tokens, max_bytes, max_file_bytes, calls_per_minute)
    changes: dict[str, int | None] = {
        limit: _to_limit(limit, text)
        for limit, text in zip(LIMIT_NAMES, texts, strict=True)
        if text is not None
    }
    if weight is not None:
        changes["weight"] = weight
    if semantic_cache is not None:
        changes["may_use_semantic_cache"] = semantic_cache
    if not changes:
        fail("nothing to change: name a weight, a limit or a right")
    with administration() as session:
        if tenants.create(session, name):
            note(session, "tenant.create", name, tenant=name)
        tenants.change(session, name, changes)
        note(session, "tenant.set", name, tenant=name, **changes)
        found = tenants.find(session, name)
    _show([found] if found else [], as_json=as_json)


def _to_limit(name: str, text: str) -> int | None:
    if text == "none":
        return None
    if not text.isdigit() or not 0 < int(text) < 2**62:
        fail(f"--{name.replace('_', '-')} {text}: a number above 0, or none")
    return int(text)


def _show(found: list[Tenant], *, as_json: bool) -> None:
    if as_json:
        print_json([_flat(tenant) for tenant in found])
        return
    columns = [
        "TENANT",
        "WEIGHT",
        *(name.replace("_", " ").upper() for name in LIMIT_NAMES),
        "SEMANTIC CACHE",
    ]
    print_table(
        columns,
        (
            (
                t.id,
                t.weight,
                *(getattr(t.limits, name) for name in LIMIT_NAMES),
                "yes" if t.may_use_semantic_cache else "no",
            )
            for t in found
        ),
    )


def _flat(tenant: Tenant) -> dict[str, Any]:
    record = asdict(tenant)
    limits: dict[str, Any] = record.pop("limits")
    return record | limits
