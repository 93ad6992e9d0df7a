"""Gives routes their dependencies: the caller, and the services limited to the caller's tenant."""

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from fastapi import Depends, Header
from fastapi import Request as HttpRequest
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.concurrency import run_in_threadpool

from api.blobs.choice import blob_store
from api.blobs.store import BlobStore
from api.errors import PermissionDeniedError
from api.forecasts.forecaster import Forecaster, Learned, read_forecaster
from api.guards import auth
from api.guards.auth import Caller
from api.guards.large_bodies import OnceRequest
from api.guards.rate_limit import RateLimiter
from api.guards.traffic import Traffic
from api.inputs.checkpoint import Checkpoint
from worker.contract.access import Scope
from worker.contract.prices import Prices
from worker.queue.broker import Broker
from worker.queue.feed import FeedReader
from worker.settings import Settings
from worker.store.database.session import Store
from worker.telemetry import add_to_work


@dataclass(frozen=True, slots=True)
class Services:
    """The objects that the application holds for its whole life."""

    settings: Settings
    store: Store
    everybody: Store  # shows all tenants' rows: for operators, and for sums that name no tenant
    learned: Learned
    broker: Broker
    checkpoint: Checkpoint
    feeds: FeedReader
    rate_limiter: RateLimiter
    blobs: BlobStore
    traffic: Traffic

    def read_forecaster(self, model: str | None) -> Forecaster:
        """Return a Forecaster of a model's batches from what is known now; None: of all batches."""
        return read_forecaster(
            self.store, self.everybody, self.learned, model=model, shard_size=self.settings.shard_size
        )

    @property
    def spool(self) -> Path:
        """The directory that holds files while they arrive."""
        return self.settings.data_dir / "incoming"


@dataclass(frozen=True, slots=True)
class IdempotencyKey:
    """A client's Idempotency-Key, with the SHA-256 of its request's body."""

    key: str
    fingerprint: str


def open_services(config: Settings) -> Services:
    """Return the services of the API or the files process; raises ModelDirectoryError."""
    store = Store(config.database_url, prices=Prices.of(config))
    return Services(
        settings=config,
        store=store,
        everybody=store,
        learned=Learned(),
        broker=Broker(config.redis_url),
        checkpoint=Checkpoint.load(config.model),
        feeds=FeedReader(config.redis_url),
        rate_limiter=RateLimiter(config.redis_url),
        blobs=blob_store(config),
        traffic=Traffic(),
    )


async def _deployment(http_request: HttpRequest) -> Services:
    services: Services = http_request.app.state.services
    return services


DeploymentDependency = Annotated[Services, Depends(_deployment)]

_bearer = HTTPBearer(scheme_name="API key", description="`Authorization: Bearer hr_...`", auto_error=False)


async def _caller(
    http_request: HttpRequest,
    deployment: DeploymentDependency,
    credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)],
) -> Caller:
    if deployment.settings.auth == "off":
        auth.check_local(http_request.scope)
        caller = auth.NOBODY_IN_PARTICULAR
    else:
        key = None if credentials is None else credentials.credentials
        caller = await run_in_threadpool(_recognize, deployment, key)
    add_to_work(tenant=caller.tenant_id, **({} if caller.key is None else {"key": caller.key}))
    return caller


def _recognize(deployment: Services, key: str | None) -> Caller:
    caller = auth.recognize(deployment.store, key)
    deployment.rate_limiter.check(caller)
    return caller


CallerDependency = Annotated[Caller, Depends(_caller)]


@dataclass(frozen=True, slots=True)
class Requires:
    """Declares the scopes of a route: the caller's key must have one of them."""

    scopes: tuple[Scope, ...]

    async def __call__(self, caller: CallerDependency) -> None:
        """Refuse a caller without any of the scopes."""
        if caller.scopes.isdisjoint(self.scopes):
            wanted = " or ".join(f"`{scope}`" for scope in self.scopes)
            raise PermissionDeniedError(f"this API key lacks the scope {wanted}", code="insufficient_scope")


# Every route declares one of these: `dependencies=[READ]`.
READ = Depends(Requires((Scope.READ,)))
SUBMIT = Depends(Requires((Scope.SUBMIT,)))
ADMIN = Depends(Requires((Scope.ADMIN,)))
DEPLOYMENT = Depends(Requires((Scope.DEPLOYMENT,)))
ADMIN_OR_DEPLOYMENT = Depends(Requires((Scope.ADMIN, Scope.DEPLOYMENT)))  # with AdministeredDependency


async def _services(deployment: DeploymentDependency, caller: CallerDependency) -> Services:
    return replace(deployment, store=deployment.store.of_tenant(caller.tenant_id))


# The services of most routes: the store shows only the rows of the caller's tenant.
ServicesDependency = Annotated[Services, Depends(_services)]


async def _administered(deployment: DeploymentDependency, caller: CallerDependency) -> Services:
    return deployment if Scope.DEPLOYMENT in caller.scopes else await _services(deployment, caller)


# The same, but over all tenants if the key has the scope `deployment`.
AdministeredDependency = Annotated[Services, Depends(_administered)]


async def _idempotency_key(
    http_request: HttpRequest,
    idempotency_key: Annotated[
        str | None,
        Header(
            min_length=1,
            max_length=255,
            description="With the same key a retry makes no second batch. Kept for 48 hours.",
        ),
    ] = None,
) -> IdempotencyKey | None:
    if idempotency_key is None:
        return None
    if isinstance(http_request, OnceRequest):
        return IdempotencyKey(idempotency_key, http_request.digest)
    return IdempotencyKey(idempotency_key, hashlib.sha256(await http_request.body()).hexdigest())


IdempotencyDependency = Annotated[IdempotencyKey | None, Depends(_idempotency_key)]
