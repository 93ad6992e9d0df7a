"""Gives routes their dependencies: the caller, and the services limited to the caller's tenant."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path as FilePath
from typing import Annotated

from fastapi import Depends, Header, Path, Query
from fastapi import Request as HttpRequest
from fastapi.security import APIKeyHeader, HTTPAuthorizationCredentials, HTTPBearer
from starlette.concurrency import run_in_threadpool

from api.blobs.choice import blob_store
from api.blobs.store import BlobStore
from api.buckets.locations import Buckets
from api.buckets.objects import load_buckets
from api.errors import PermissionDeniedError
from api.guards import auth
from api.guards.auth import Caller
from api.guards.large_bodies import OnceRequest
from api.guards.rate_limit import RateLimiter
from api.guards.traffic import Traffic
from api.inputs.checkpoint import Checkpoint
from api.inputs.schema import Text
from worker.contract.access import EVERY_TENANT, Scope
from worker.contract.prices import Prices
from worker.forecasts.forecaster import Forecaster, Learned, read_forecaster
from worker.queue.broker import Broker
from worker.queue.feed import FeedReader
from worker.settings import Settings
from worker.store.batches import batch_views
from worker.store.batches.batch_views import BatchView
from worker.store.database.session import Store
from worker.telemetry import add_to_work
from worker.values.parsing import Family

# Batches whose tenant is known without a query, as an operator asked for them before.
MAX_OWNERS = 10_000


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
    buckets: Buckets = field(default_factory=Buckets)
    owners: dict[str, str] = field(default_factory=dict)  # tenants of batches that operators asked for
    operator: str | None = None  # who acts on another tenant's batch, as the audit log names them

    def read_forecaster(self, model: str | None) -> Forecaster:
        """Return a Forecaster of a model's batches from what is known now; None: of all batches."""
        return read_forecaster(
            self.store, self.everybody, self.learned, model=model, shard_sizes=self.settings.shard_sizes
        )

    def read_forecasters(self, views: Sequence[BatchView]) -> dict[str | None, Forecaster]:
        """Return a Forecaster of each model that has work left in these batches, by fingerprint."""
        live = (one for view in views if not view.status.is_terminal for one in view.by_model())
        return {model: self.read_forecaster(model) for model in {one.model_fingerprint for one in live}}

    @property
    def spool(self) -> FilePath:
        """The directory that holds files while they arrive."""
        return self.settings.data_dir / "incoming"


@dataclass(frozen=True, slots=True)
class IdempotencyKey:
    """A client's Idempotency-Key, with the SHA-256 of its request's body."""

    key: str
    fingerprint: str


def open_services(config: Settings) -> Services:
    """Return the services of the API or the files process; raises ModelDirectoryError."""
    store = Store(config.database_url, has_pooler=config.has_pooler, prices=Prices.of(config))
    return Services(
        settings=config,
        store=store,
        everybody=store,
        learned=Learned(),
        broker=Broker(config.redis_url),
        checkpoint=Checkpoint.load_all(
            [config.model, *config.models],
            family=None if config.model_family is None else Family(config.model_family),
            aliases=config.model_aliases,
        ),
        feeds=FeedReader(config.redis_url),
        rate_limiter=RateLimiter(config.redis_url),
        blobs=blob_store(config),
        buckets=load_buckets(config.buckets),
        traffic=Traffic(),
    )


async def _deployment(http_request: HttpRequest) -> Services:
    services: Services = http_request.app.state.services
    return services


DeploymentDependency = Annotated[Services, Depends(_deployment)]

_bearer = HTTPBearer(scheme_name="API key", description="`Authorization: Bearer hr_...`", auto_error=False)
_key_header = APIKeyHeader(
    name=auth.KEY_HEADER, scheme_name="API key header", description="`x-api-key: hr_...`", auto_error=False
)


async def _caller(
    http_request: HttpRequest,
    deployment: DeploymentDependency,
    _credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)],
    _given_key: Annotated[str | None, Depends(_key_header)],
) -> Caller:
    if deployment.settings.auth == "off":
        auth.check_local(http_request.scope)
        caller = auth.NOBODY_IN_PARTICULAR
    else:
        key = auth.key_of(http_request.headers)
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
            raise insufficient_scope(*self.scopes)


def insufficient_scope(*scopes: Scope) -> PermissionDeniedError:
    """Return the error of a caller whose key has none of these scopes."""
    wanted = " or ".join(f"`{scope}`" for scope in scopes)
    return PermissionDeniedError(
        f"This API key does not have the scope {wanted}. Use a key that has it.", code="insufficient_scope"
    )


# Every route declares one of these: `dependencies=[READ]`.
READ = Depends(Requires((Scope.READ,)))
SUBMIT = Depends(Requires((Scope.SUBMIT,)))
ADMIN = Depends(Requires((Scope.ADMIN,)))
DEPLOYMENT = Depends(Requires((Scope.DEPLOYMENT,)))
ADMIN_OR_DEPLOYMENT = Depends(Requires((Scope.ADMIN, Scope.DEPLOYMENT)))  # with AdministeredDependency
READ_BATCH = Depends(Requires((Scope.READ, Scope.DEPLOYMENT)))  # with BatchDependency or ListedDependency
CONTROL_BATCH = Depends(Requires((Scope.SUBMIT, Scope.DEPLOYMENT)))  # with BatchDependency


async def _services(deployment: DeploymentDependency, caller: CallerDependency) -> Services:
    return replace(deployment, store=deployment.store.of_tenant(caller.tenant_id))


# The services of most routes: the store shows only the rows of the caller's tenant.
ServicesDependency = Annotated[Services, Depends(_services)]


async def _administered(deployment: DeploymentDependency, caller: CallerDependency) -> Services:
    return deployment if Scope.DEPLOYMENT in caller.scopes else await _services(deployment, caller)


# The same, but over all tenants if the key has the scope `deployment`.
AdministeredDependency = Annotated[Services, Depends(_administered)]


BatchId = Annotated[Text, Path(examples=["batch_0d9c6d1f7a5b4c7f8f7b6f9f4c1e2a3b"], max_length=64)]


async def services_of_batch(
    batch_id: BatchId, deployment: DeploymentDependency, caller: CallerDependency
) -> Services:
    """Return the services of the batch's tenant to an operator, and of the caller's own to others."""
    own = await _services(deployment, caller)
    if Scope.DEPLOYMENT not in caller.scopes:
        return own
    owner = deployment.owners.get(batch_id) or await run_in_threadpool(_owner, deployment, batch_id)
    if not owner or owner == caller.tenant_id:
        return own
    return replace(own, store=deployment.store.of_tenant(owner), operator=caller.actor)


def _owner(deployment: Services, batch_id: str) -> str | None:
    with deployment.store.look() as session:
        owner = batch_views.owner(session, batch_id)
    if owner:  # a batch keeps its owner, and polls ask again and again
        if len(deployment.owners) >= MAX_OWNERS:
            deployment.owners.clear()
        deployment.owners[batch_id] = owner
    return owner


# The services of routes of one batch: an operator may use them for any tenant's.
BatchDependency = Annotated[Services, Depends(services_of_batch)]


async def services_of_list(
    deployment: DeploymentDependency,
    caller: CallerDependency,
    tenant: Annotated[
        Text | None,
        Query(
            max_length=63,
            description="Whose batches: a tenant's name, or `*` for all, with the scope `deployment`."
            " Default: the key's own tenant.",
        ),
    ] = None,
) -> Services:
    """Return the services of the named tenant, or of the caller's own."""
    if tenant in {None, caller.tenant_id} and Scope.READ in caller.scopes:
        return await _services(deployment, caller)
    if tenant is None:
        raise insufficient_scope(Scope.READ)
    if Scope.DEPLOYMENT not in caller.scopes:
        raise insufficient_scope(Scope.DEPLOYMENT)
    if tenant == EVERY_TENANT:
        return deployment
    return replace(deployment, store=deployment.store.of_tenant(tenant))


# The services of routes that list batches.
ListedDependency = Annotated[Services, Depends(services_of_list)]


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
    return IdempotencyKey(idempotency_key, await _body_digest(http_request))


async def _body_digest(http_request: HttpRequest) -> str:
    if isinstance(http_request, OnceRequest):
        return http_request.digest
    return hashlib.sha256(await http_request.body()).hexdigest()


# The SHA-256 of the body.
BodyDigestDependency = Annotated[str, Depends(_body_digest)]
IdempotencyDependency = Annotated[IdempotencyKey | None, Depends(_idempotency_key)]
