"""Defines `headrace audit`, and how `headrace keys` and `tenants` reach the API or the database."""

import os
import pwd
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Annotated, Any

import typer
from sqlalchemy.orm import Session

from api.cli.connection import Connection, connection
from api.cli.show import AsJson, fail, print_json, print_table
from worker.contract.access import TENANT_NAME
from worker.settings import direct_url
from worker.store.database.session import Store
from worker.store.tenants import audit


def server(context: typer.Context) -> Connection | None:
    """Return the connection to administer through, None to use the database of this machine.

    The API is used if an API key was given. The first key must be made in the database.
    """
    found = connection(context)
    return found if found.api_key else None


def check_tenant_name(name: str) -> None:
    """End the command unless this is a valid tenant name."""
    if not re.fullmatch(TENANT_NAME, name):
        fail(
            f"{name!r} is not a tenant's name. Use 1 to 63 lower-case letters, digits, dots, dashes and"
            " underscores, and begin with a letter or a digit."
        )


@contextmanager
def administration() -> Iterator[Session]:
    """Run one transaction on the deployment's database."""
    store = Store(direct_url(), pool_size=1)
    try:
        with store.transaction() as session:
            yield session
    finally:
        store.close()


def note(session: Session, act: str, target: str, *, tenant: str, **details: Any) -> None:
    """Record an act of this shell's user on a tenant in the audit log."""
    actor = f"shell:{pwd.getpwuid(os.getuid()).pw_name}"
    audit.record(session, actor, act, target, details, tenant_id=tenant)


def audit_log(
    context: typer.Context,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="The number of entries to show.")] = 50,
    as_json: AsJson = False,
) -> None:
    """Show the log of administrative acts, the newest first."""
    if api := server(context):
        entries: list[dict[str, Any]] = api.call("GET", "/v1/audit", params={"limit": limit})["data"]
    else:
        with administration() as session:
            entries = [_renamed(asdict(entry)) for entry in audit.page(session, limit=limit)]
    if as_json:
        print_json(entries)
    else:
        columns = ("created_at", "tenant", "actor", "act", "target", "details")
        headings = ["TIME", "TENANT", "WHO", "ACT", "TARGET", "DETAILS"]
        print_table(headings, ([entry[column] for column in columns] for entry in entries))


def _renamed(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record of the store with the API's name for the tenant."""
    return record | {"tenant": record["tenant_id"]}
