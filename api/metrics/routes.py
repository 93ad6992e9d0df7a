"""Serves /metrics, /v1/metrics, /v1/cache and /v1/cache/stats."""

from typing import Annotated

from fastapi import APIRouter, FastAPI, Query, Response
from fastapi import Request as HttpRequest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from api.dependencies import (
    ADMIN_OR_DEPLOYMENT,
    DEPLOYMENT,
    AdministeredDependency,
    CallerDependency,
    DeploymentDependency,
)
from api.errors import PermissionDeniedError, documented
from api.metrics.collector import HttpMetrics, SystemCollector
from api.metrics.middleware import MeasureHttp
from api.metrics.schemas import CacheCleared, CacheKind, CacheStats, Summary
from api.metrics.summary import to_cache_stats, to_summary
from worker.contract.access import Scope
from worker.contract.messages import GPU_QUEUE
from worker.settings import Settings
from worker.store.cache import response_cache
from worker.store.counts import meters, usage
from worker.store.database.session import Store
from worker.store.tenants import audit
from worker.store.watching import workers
from worker.store.watching.queue_depth import queue_depth

router = APIRouter(tags=["metrics"])


def install(app: FastAPI, store: Store, config: Settings) -> None:
    """Measure every request of the application, and make a registry for `/metrics`."""
    registry = CollectorRegistry()
    app.add_middleware(MeasureHttp, metrics=HttpMetrics(registry))
    registry.register(SystemCollector(store, config))
    app.state.metrics = registry
    app.include_router(router)


@router.get(
    "/metrics",
    response_class=Response,
    responses={
        200: {"content": {"text/plain": {"schema": {"type": "string"}}}},
        **documented(401, 403, 429, 503),
    },
    summary="Metrics for Prometheus",
    dependencies=[DEPLOYMENT],
)
def prometheus(http_request: HttpRequest) -> Response:
    """Return this process's HTTP metrics, and those of all workers and queues."""
    registry: CollectorRegistry = http_request.app.state.metrics
    return Response(generate_latest(registry), media_type=CONTENT_TYPE_PLAIN_0_0_4)


@router.get(
    "/v1/metrics",
    responses=documented(401, 403, 422, 429, 503),
    summary="Metrics in short",
    dependencies=[DEPLOYMENT],
)
def summary(
    services: DeploymentDependency,
    minutes: Annotated[int, Query(ge=1, le=60, description="What rates are measured over.")] = 5,
) -> Summary:
    """Return totals, rates, latencies and shares as the workers measured them."""
    with services.store.transaction() as session:
        return to_summary(
            meters.measured(session, minutes=minutes),
            usage.measured(session, minutes=minutes),
            queue_depth(session),
            workers.live(session, GPU_QUEUE),
            currency=services.settings.currency,
        )


@router.get(
    "/v1/cache/stats",
    responses=documented(401, 403, 429, 503),
    summary="What the caches hold and spare",
    dependencies=[DEPLOYMENT],
)
def cache_stats(services: DeploymentDependency) -> CacheStats:
    """Return the size and hit rate of the response cache, and of each worker's KV and prefix cache."""
    with services.store.transaction() as session:
        return to_cache_stats(
            meters.measured(session, minutes=1).total,
            usage.measured(session, minutes=1).total,
            response_cache.size(session),
            workers.live(session, GPU_QUEUE),
            ttl_seconds=services.settings.cache_ttl_seconds,
            has_vectors=response_cache.has_vectors(session),
        )


@router.delete(
    "/v1/cache",
    responses=documented(401, 403, 422, 429, 503),
    summary="Clear the caches",
    dependencies=[ADMIN_OR_DEPLOYMENT],
)
def clear_cache(
    services: AdministeredDependency,
    caller: CallerDependency,
    kind: Annotated[
        CacheKind | None,
        Query(description="Default: both; without the scope `deployment` only the response cache."),
    ] = None,
) -> CacheCleared:
    """Delete every cached answer of the tenant, or of all tenants with the scope `deployment`.

    With that scope, also have every live worker forget the prompt prefixes that it has cached. A worker does
    so before its next step, and running requests go on undisturbed.
    """
    is_operator = Scope.DEPLOYMENT in caller.scopes
    if kind is CacheKind.PREFIX and not is_operator:
        raise PermissionDeniedError(
            "the prefix caches belong to all tenants: clearing them takes the scope `deployment`",
            code="insufficient_scope",
        )
    removed = num_workers = None
    with services.store.transaction() as session:
        if kind is not CacheKind.PREFIX:
            removed = response_cache.clear(session)
        if kind is not CacheKind.RESPONSE and is_operator:
            num_workers = workers.ask_to_clear_caches(session)
        audit.record(
            session,
            caller.actor,
            "cache.clear",
            "all" if kind is None else kind,
            {"entries_removed": removed, "workers": num_workers},
            tenant_id=caller.tenant_id,
        )
    return CacheCleared(entries_removed=removed, workers=num_workers)
