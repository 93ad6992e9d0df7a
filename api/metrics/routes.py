"""Serves /metrics, /v1/metrics, /v1/cache and /v1/cache/stats."""

from typing import Annotated

from fastapi import APIRouter, FastAPI, Query, Response
from fastapi import Request as HttpRequest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from api.dependencies import ADMIN_OR_DEPLOYMENT, DEPLOYMENT, AdministeredDependency, DeploymentDependency
from api.errors import documented
from api.metrics.collector import HttpMetrics, SystemCollector
from api.metrics.middleware import MeasureHttp
from api.metrics.schemas import CacheCleared, CacheStats, Summary
from api.metrics.summary import to_cache_stats, to_summary
from worker.contract.messages import GPU_QUEUE
from worker.store.cache import response_cache
from worker.store.counts import meters
from worker.store.database.session import Store
from worker.store.watching import workers
from worker.store.watching.queue_depth import queue_depth

router = APIRouter(tags=["metrics"])


def install(app: FastAPI, store: Store) -> None:
    """Measure every request of the application, and make a registry for `/metrics`."""
    registry = CollectorRegistry()
    app.add_middleware(MeasureHttp, metrics=HttpMetrics(registry))
    registry.register(SystemCollector(store))
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
        measured = meters.measured(session, minutes=minutes)
        return to_summary(measured, queue_depth(session), workers.count(session, GPU_QUEUE))


@router.get(
    "/v1/cache/stats",
    responses=documented(401, 403, 429, 503),
    summary="What the caches hold and spare",
    dependencies=[DEPLOYMENT],
)
def cache_stats(services: DeploymentDependency) -> CacheStats:
    """Return the size of the response cache, its hit rate, and that of the engines' prefix caches."""
    with services.store.transaction() as session:
        return to_cache_stats(
            meters.measured(session, minutes=1).total,
            response_cache.size(session),
            ttl_seconds=services.settings.cache_ttl_seconds,
            has_vectors=response_cache.has_vectors(session),
        )


@router.delete(
    "/v1/cache",
    responses=documented(401, 403, 429, 503),
    summary="Empty the response cache",
    dependencies=[ADMIN_OR_DEPLOYMENT],
)
def clear_cache(services: AdministeredDependency) -> CacheCleared:
    """Delete every cached answer of the tenant; with the scope `deployment`, of all tenants."""
    with services.store.transaction() as session:
        return CacheCleared(entries_removed=response_cache.clear(session))
