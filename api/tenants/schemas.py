"""Defines the bodies of the tenant routes."""

from dataclasses import asdict
from datetime import datetime
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from api.inputs.schema import Schema
from worker.contract.access import TENANT_NAME
from worker.store.tenants.tenants import Tenant

TenantName = Annotated[
    str,
    Field(
        pattern=f"^{TENANT_NAME}$",
        description="1 to 63 lower-case letters, digits, dots, dashes and underscores; the first is a letter"
        " or a digit",
        examples=["acme"],
    ),
]
Limit = Annotated[int, Field(ge=1, lt=2**62)]


class TenantAnswer(BaseModel):
    """A tenant. A limit that is null does not apply."""

    id: str
    weight: int = Field(description="its share of the workers, relative to the other tenants'")
    max_batches: int | None = Field(description="batches that have not ended")
    max_requests: int | None = Field(description="requests without a result")
    max_tokens: int | None = Field(description="tokens of those requests, with outputs at their longest")
    max_bytes: int | None = Field(description="bytes of stored prompts and outputs")
    max_file_bytes: int | None = Field(description="bytes of files")
    calls_per_minute: int | None = Field(description="calls to the API")
    may_use_semantic_cache: bool
    allows_reuse: bool = Field(
        description="whether its stored requests and outputs may serve for tuning and training"
    )
    created_at: datetime


class TenantList(BaseModel):
    """Tenants, by name."""

    data: list[TenantAnswer]


class TenantChange(Schema):
    """Changes to a tenant. Fields left out stay as they are; null removes a limit."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"weight": 3, "max_batches": 20}]})

    weight: Annotated[int, Field(ge=1, le=1000)] = 1
    max_batches: Limit | None = None
    max_requests: Limit | None = None
    max_tokens: Limit | None = None
    max_bytes: Limit | None = None
    max_file_bytes: Limit | None = None
    calls_per_minute: Limit | None = None
    may_use_semantic_cache: bool = False
    allows_reuse: bool = False


def to_answer(tenant: Tenant) -> TenantAnswer:
    """Return a tenant as a client sees it."""
    record = asdict(tenant)
    return TenantAnswer(**record.pop("limits"), **record)
