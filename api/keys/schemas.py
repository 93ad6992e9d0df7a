"""Defines the bodies of the key routes."""

from datetime import datetime
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from api.inputs.schema import NonEmptyText, Schema
from api.tenants.schemas import TenantName
from worker.contract.access import Scope

DAY_SECONDS = 86_400
MAX_SECONDS = 3650 * DAY_SECONDS

Scopes = Annotated[
    list[Annotated[Scope, Field(strict=False)]],
    Field(min_length=1, max_length=len(Scope)),
    AfterValidator(lambda scopes: sorted(set(scopes))),
]


class NewKey(Schema):
    """A key to create."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"name": "nightly jobs", "scopes": ["read", "submit"]}]}
    )

    name: Annotated[NonEmptyText, Field(max_length=100, description="what the key is for")]
    tenant: TenantName | None = Field(
        default=None, description="whose key it is; left out: the caller's tenant; it is created if need be"
    )
    scopes: Scopes = Field(default=[Scope.READ, Scope.SUBMIT], description="what the key may do")
    expires_in_seconds: Annotated[int, Field(ge=60, le=MAX_SECONDS)] | None = Field(
        default=None, description="how long the key works; left out: until it is revoked"
    )


class KeyRotation(Schema):
    """Options for replacing a key."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"overlap_seconds": 3600}]})

    overlap_seconds: Annotated[int, Field(ge=0, le=MAX_SECONDS)] = Field(
        default=DAY_SECONDS, description="how long the old key still works"
    )


class KeyAnswer(BaseModel):
    """A key without its secret part."""

    model_config = ConfigDict(from_attributes=True, validate_by_name=True)

    prefix: str = Field(description="the public beginning of the key, which names it")
    tenant: str = Field(validation_alias="tenant_id")
    name: str
    scopes: Annotated[list[Scope], AfterValidator(sorted)]
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None = Field(description="to the minute")


class KeyWithSecret(KeyAnswer):
    """A key that was just created. Only this answer shows it whole."""

    key: str


class KeyList(BaseModel):
    """Keys, the oldest first."""

    data: list[KeyAnswer]
