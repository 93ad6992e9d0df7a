"""Defines `headrace audit`, and the transaction and audit entries of `headrace keys` and `tenants`."""

import os
import pwd
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Annotated, Any

import typer
from sqlalchemy.orm import Session

from api.cli.show import AsJson, fail, print_json, print_table
from worker.settings import database_url
from worker.store.database.session import Store
from worker.store.tenants import audit

TENANT_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")


def check_tenant_name(name: str) -> None:
    """End the command unless this is a valid tenant name."""
    if not TENANT_NAME.fullmatch(name):
        fail(f"{name}: a tenant's name has lower-case letters, digits, dots, dashes and underscores")


@contextmanager
def administration() -> Iterator[Session]:
    """Run one transaction on the deployment's database."""
    store = Store(database_url(), pool_size=1)
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
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Entries to show.")] = 50,
    as_json: AsJson = False,
) -> None:
    """Show the log of administrative acts, newest first."""
    with administration() as session:
        entries = audit.page(session, limit=limit)
    if as_json:
        print_json([asdict(entry) for entry in entries])
    else:
        print_table(
            ["TIME", "TENANT", "WHO", "ACT", "TARGET", "DETAILS"],
            ((e.created_at, e.tenant_id, e.actor, e.act, e.target, e.details) for e in entries),
        )
