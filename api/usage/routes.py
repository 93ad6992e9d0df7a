"""Serves /v1/usage and /v1/usage/tenants."""

from datetime import UTC, date, datetime, timedelta
from typing import Annotated

from fastapi import APIRouter, Query

from api.dependencies import DEPLOYMENT, READ, DeploymentDependency, ServicesDependency
from api.errors import InvalidInputError, documented
from api.figures import to_latencies, to_usage, total_of
from api.usage.schemas import TenantsReport, TenantUsage, UsageDay, UsageReport
from worker.contract.access import NOBODY
from worker.store.counts import usage

router = APIRouter(prefix="/v1/usage", tags=["usage"])

DEFAULT_DAYS = 30
MAX_DAYS = 366

OLDEST, LATEST = date(2000, 1, 1), date(2999, 12, 31)

First = Annotated[
    date | None,
    Query(ge=OLDEST, le=LATEST, description=f"UTC. Default: {DEFAULT_DAYS - 1} days before `last`."),
]
Last = Annotated[date | None, Query(ge=OLDEST, le=LATEST, description="UTC, included. Default: today.")]


@router.get("", dependencies=[READ], responses=documented(401, 403, 422, 429, 503), summary="Read your usage")
def get_usage(services: ServicesDependency, first: First = None, last: Last = None) -> UsageReport:
    """Return the tenant's requests, tokens, device seconds, cost and latencies by day of their results.

    Usage stays when its batches are deleted. Costs are at the prices that held when the work was done.
    """
    first, last = _days(first, last)
    currency = services.settings.currency
    with services.store.transaction() as session:
        by_day = usage.by_day(session, first=first, last=last)
    total = total_of(by_day.values())
    return UsageReport(
        first=first,
        last=last,
        total=to_usage(total, currency),
        latency=to_latencies(total),
        data=[
            UsageDay(day=day, **to_usage(readings, currency).model_dump()) for day, readings in by_day.items()
        ],
    )


@router.get(
    "/tenants",
    dependencies=[DEPLOYMENT],
    responses=documented(401, 403, 422, 429, 503),
    summary="Read the usage of all tenants",
)
def get_tenants_usage(
    services: DeploymentDependency, first: First = None, last: Last = None
) -> TenantsReport:
    """Return requests, tokens, device seconds and cost of each tenant."""
    first, last = _days(first, last)
    currency = services.settings.currency
    with services.store.transaction() as session:
        by_tenant = usage.by_tenant(session, first=first, last=last)
    return TenantsReport(
        first=first,
        last=last,
        total=to_usage(total_of(by_tenant.values()), currency),
        data=[
            TenantUsage(tenant=tenant, **to_usage(readings, currency).model_dump())
            for tenant, readings in by_tenant.items()
            if tenant != NOBODY
        ],
    )


def _days(first: date | None, last: date | None) -> tuple[date, date]:
    """Return the first and last day that are meant; raises InvalidInputError."""
    last = last or datetime.now(UTC).date()
    first = first or last - timedelta(days=DEFAULT_DAYS - 1)
    if not timedelta(0) <= last - first < timedelta(days=MAX_DAYS):
        raise InvalidInputError(
            f"first: must be at most {MAX_DAYS} days before last, and not after it", param="first"
        )
    return first, last
