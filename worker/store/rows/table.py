"""The base class of all tables, their column types and naming convention.

Lock order in every transaction: the batch, if it locks that, then its shards. Every time comes from
Postgres's own clock.
"""

from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import (
    BigInteger,
    DateTime,
    Double,
    Enum,
    Integer,
    LargeBinary,
    MetaData,
    Text,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB
from sqlalchemy.orm import DeclarativeBase, Mapped, MappedColumn, mapped_column

from worker.contract.access import DEFAULT_TENANT
from worker.contract.states import AttemptCause, BatchStatus, EventState, Lane, ShardState
from worker.values.caching import CacheMode, Source
from worker.values.outcomes import Outcome
from worker.values.requests import RequestKind

NAMING_CONVENTION = {
    "ix": "%(table_name)s_%(column_0_N_name)s_index",
    "uq": "%(table_name)s_%(column_0_N_name)s_key",
    "ck": "%(table_name)s_%(constraint_name)s_check",
    "fk": "%(table_name)s_%(column_0_name)s_%(referred_table_name)s_fkey",
    "pk": "%(table_name)s_pkey",
}


def one_of(column: str, values: type[StrEnum]) -> Enum:
    """Return a text column type with a CHECK, whose values are read as members of the enumeration."""
    return Enum(
        values,
        name=column,
        native_enum=False,
        create_constraint=True,
        length=32,
        values_callable=lambda members: [member.value for member in members],
    )


class TableRow(DeclarativeBase):
    """Base of every table: text for strings, timestamptz for times, jsonb for objects."""

    metadata = MetaData(naming_convention=NAMING_CONVENTION)
    type_annotation_map = {  # noqa: RUF012 - SQLAlchemy reads this name from the class
        str: Text,
        int: BigInteger,
        float: Double,
        bytes: LargeBinary,
        datetime: DateTime(timezone=True),
        dict[str, Any]: JSONB(none_as_null=True),
        list[Any]: JSONB(none_as_null=True),
        list[int]: ARRAY(Integer),
        list[str]: ARRAY(Text),
        BatchStatus: one_of("status", BatchStatus),
        ShardState: one_of("state", ShardState),
        EventState: one_of("state", EventState),
        Outcome: one_of("outcome", Outcome),
        AttemptCause: one_of("cause", AttemptCause),
        RequestKind: one_of("kind", RequestKind),
        Lane: one_of("lane", Lane),
        CacheMode: one_of("cache", CacheMode),
        Source: one_of("source", Source),
    }


def is_in(column: str, values: set[str] | frozenset[str]) -> Any:
    """Return the condition of a partial index, that the column has one of these values."""
    return text(f"{column} IN ({', '.join(repr(str(v)) for v in sorted(values))})")


# Condition of ready shards that have a ticket.
IS_TICKETED = "state IN ('ready') AND ticketed_at IS NOT NULL"


def created_now() -> MappedColumn[datetime]:
    """Return a column for the time of the row's insert."""
    return mapped_column(server_default=func.now())


class Copier(StrEnum):
    """An operation that copies rows, but only those of their columns that name it (`copied_by`)."""

    RETRY = "retry"  # a batch and its failed requests: what the customer asked for
    DUPLICATE = "duplicate"  # a Result, to the identical requests of its shard
    CACHE = "cache"  # a Result's answer, for later requests


def copied_by(*copiers: Copier) -> dict[Any, Any]:
    """Return the `info` of a column that these operations copy."""
    return {"copied_by": copiers}


def columns_copied_by(copier: Copier, table: type[TableRow]) -> list[str]:
    """Return the attributes of a table whose columns this operation copies."""
    columns = table.__mapper__.column_attrs
    return [column.key for column in columns if copier in column.columns[0].info.get("copied_by", ())]


class Owned:
    """Mixin for tables whose rows belong to a tenant; a tenant's store sees only its own rows."""

    tenant_id: Mapped[str] = mapped_column(server_default=DEFAULT_TENANT, info=copied_by(Copier.RETRY))
