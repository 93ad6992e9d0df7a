"""Starts a whole deployment whose API requires keys, and makes a client for each of its tenants."""

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from api.cli.session import choose_ports, session
from worker.contract.access import Scope
from worker.embedded import services
from worker.settings import settings
from worker.store.database.session import Store
from worker.store.tenants import api_keys, tenants

PROCESSES = ("web", "gpu", "callbacks", "dispatcher")
STALL_SECONDS = 3.0
ENDED = ("completed", "failed", "cancelled", "expired")


class StalledError(Exception):
    """Raised when the whole machine stalled during a measurement, so that its times mean nothing."""


@dataclass(frozen=True, slots=True)
class Tenants:
    """The tenants of a running deployment."""

    store: Store
    headers: dict[str, str]  # the Authorization header of each tenant, by name

    def limit(self, tenant_id: str, **limits: int | None) -> None:
        """Set a tenant's weight or limits."""
        with self.store.transaction() as opened:
            tenants.change(opened, tenant_id, limits)


@contextmanager
def deployed(model: Path | None, *names: str) -> Iterator[Tenants]:
    """Start a whole deployment on a temporary data directory, with tenants of these names.

    Raises SessionError when it does not start.
    """
    with ExitStack() as stack:
        directory = stack.enter_context(
            tempfile.TemporaryDirectory(prefix="headrace-", ignore_cleanup_errors=True)
        )
        os.environ["HEADRACE_AUTH"] = "keys"
        os.environ["HEADRACE_DATA_DIR"] = directory
        if model is not None:
            os.environ["HEADRACE_MODEL"] = str(model)
        os.environ.update(stack.enter_context(services(os.environ)))
        choose_ports()
        log = Path(os.environ.get("HEADRACE_BENCH_LOG") or f"{directory}/log")
        stack.enter_context(session(log, PROCESSES))
        store = Store(settings().database_url, pool_size=1)
        stack.callback(store.close)
        headers = {}
        for tenant_id in names:
            with store.transaction() as opened:
                tenants.create(opened, tenant_id)
                scopes = [Scope.READ, Scope.SUBMIT]
                key = api_keys.create(opened, tenant_id, name="benchmark", scopes=scopes)
            headers[tenant_id] = f"Bearer {key}"
        yield Tenants(store, headers)


def client_of(authorization: str) -> httpx.Client:
    """Return a client of the running API."""
    return httpx.Client(
        base_url=f"http://127.0.0.1:{settings().port}", headers={"Authorization": authorization}, timeout=60
    )


def submit(client: httpx.Client, requests: list[dict[str, Any]]) -> str:
    """Submit requests that run to their max_tokens; return the batch's id."""
    body = {"requests": requests, "temperature": 0, "ignore_eos": True}
    answer = client.post("/v1/batch/async", json=body)
    answer.raise_for_status()
    return str(answer.json()["batch_id"])


def view(client: httpx.Client, batch_id: str) -> dict[str, Any]:
    """Return a batch's state, without its outputs."""
    return dict(client.get(f"/v1/batch/{batch_id}").raise_for_status().json())


def wait(
    client: httpx.Client, batch_id: str, *, seconds: float = 3600.0, stall_seconds: float = STALL_SECONDS
) -> dict[str, Any]:
    """Wait until a batch has ended; return it.

    Raises TimeoutError after `seconds`, and StalledError when the machine stalled for `stall_seconds`.
    """
    last = started = time.monotonic()
    while last < started + seconds:
        batch = view(client, batch_id)
        if batch["status"] in ENDED:
            return batch
        time.sleep(0.1)
        before, last = last, time.monotonic()
        if last - before > stall_seconds:
            raise StalledError(f"for {last - before:.1f} s")
    raise TimeoutError(f"{batch_id} has not ended after {seconds:g} s")
