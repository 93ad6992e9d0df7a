"""Defines `headrace tenants`: list and change tenants' shares, limits and rights."""

from dataclasses import fields
from typing import Annotated, Any

import typer

from api.cli.commands.administration import administration, check_tenant_name, note, server
from api.cli.show import AsJson, fail, print_json, print_table
from api.tenants.schemas import to_answer
from worker.store.tenants import tenants
from worker.store.tenants.tenants import TenantLimits

app = typer.Typer(
    help="Manage tenants: through the API if HEADRACE_API_KEY is set, else in the database.",
    no_args_is_help=True,
)

LIMIT_NAMES = tuple(limit.name for limit in fields(TenantLimits))
RIGHTS = {"may_use_semantic_cache": "SEMANTIC CACHE", "allows_reuse": "REUSE"}  # and their headings

Name = Annotated[str, typer.Argument(help="The name of the tenant.")]


def _limit(noun: str) -> Any:
    return typer.Option(metavar="NUMBER|none", help=f"The most {noun}.")


@app.command("list")
def list_tenants(context: typer.Context, as_json: AsJson = False) -> None:
    """List tenants with their shares, limits and rights."""
    if api := server(context):
        found: list[dict[str, Any]] = api.call("GET", "/v1/tenants")["data"]
    else:
        with administration() as session:
            found = [to_answer(one).model_dump(mode="json") for one in tenants.every(session)]
    _show(found, as_json=as_json)


@app.command("set")
def set_tenant(
    context: typer.Context,
    name: Name,
    weight: Annotated[
        int | None, typer.Option(min=1, max=1000, help="Its share of the workers, relative to others.")
    ] = None,
    max_batches: Annotated[str | None, _limit("batches that have not ended")] = None,
    max_requests: Annotated[str | None, _limit("requests without a result")] = None,
    max_tokens: Annotated[str | None, _limit("tokens of those requests")] = None,
    max_bytes: Annotated[str | None, _limit("bytes of stored prompts and outputs")] = None,
    max_file_bytes: Annotated[str | None, _limit("bytes of files")] = None,
    calls_per_minute: Annotated[str | None, _limit("calls to the API a minute")] = None,
    semantic_cache: Annotated[
        bool | None,
        typer.Option(
            "--semantic-cache/--no-semantic-cache", help="Allow its batches to ask for the semantic cache."
        ),
    ] = None,
    reuse: Annotated[
        bool | None,
        typer.Option(
            "--reuse/--no-reuse",
            help="Allow its stored requests and outputs to serve for tuning and training.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Change a tenant's share, limits and rights, or create it. `none` removes a limit; the rest stays."""
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
    if reuse is not None:
        changes["allows_reuse"] = reuse
    if not changes:
        fail("There is nothing to change. Name a weight, a limit or a right.")
    if api := server(context):
        _show([api.call("PATCH", f"/v1/tenants/{name}", json=changes)], as_json=as_json)
        return
    with administration() as session:
        if tenants.create(session, name):
            note(session, "tenant.create", name, tenant=name)
        tenants.change(session, name, changes)
        note(session, "tenant.set", name, tenant=name, **changes)
        found = tenants.find(session, name)
    _show([to_answer(found).model_dump(mode="json")] if found else [], as_json=as_json)


def _to_limit(name: str, text: str) -> int | None:
    if text == "none":
        return None
    if not text.isdigit() or not 0 < int(text) < 2**62:
        fail(f"--{name.replace('_', '-')} {text}: write a number above 0, or none.")
    return int(text)


def _show(found: list[dict[str, Any]], *, as_json: bool) -> None:
    if as_json:
        print_json(found)
        return
    columns = ("id", "weight", *LIMIT_NAMES)
    headings = ["TENANT", *(name.replace("_", " ").upper() for name in columns[1:]), *RIGHTS.values()]
    rows = ([*map(one.get, columns), *("yes" if one[right] else "no" for right in RIGHTS)] for one in found)
    print_table(headings, rows)
