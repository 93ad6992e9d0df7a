"""Defines the answers of the usage routes."""

from datetime import date
from typing import Literal

from pydantic import BaseModel, Field

from api.figures import LaneLatency, UsageFigures


class UsageDay(UsageFigures):
    """Usage of one day."""

    day: date = Field(description="in UTC, on which results were stored")


class UsageReport(BaseModel):
    """Usage of a tenant by day, and in sum."""

    object: Literal["usage"] = "usage"
    first: date
    last: date
    total: UsageFigures
    latency: list[LaneLatency]
    data: list[UsageDay] = Field(description="days with any usage, the oldest first")


class TenantUsage(UsageFigures):
    """Usage of one tenant."""

    tenant: str


class TenantsReport(BaseModel):
    """Usage of all tenants."""

    object: Literal["usage"] = "usage"
    first: date
    last: date
    total: UsageFigures
    data: list[TenantUsage] = Field(description="tenants with any usage, by name")
