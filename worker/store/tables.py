"""The tables. Only worker.store imports them.

Lock order, everywhere: the batch, then its shards. Every time comes from Postgres's own clock.
"""

from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    DateTime,
    Double,
    Enum,
    ForeignKey,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Text,
    false,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB
from sqlalchemy.orm import DeclarativeBase, Mapped, MappedColumn, mapped_column

from worker.contract.access import DEFAULT_TENANT
from worker.contract.caching import CacheMode, Source
from worker.contract.requests import RequestKind
from worker.contract.states import (
    LIVE_STATUSES,
    AttemptCause,
    BatchStatus,
    EventState,
    Lane,
    Outcome,
    ShardState,
)

NAMING_CONVENTION = {
    "ix": "%(table_name)s_%(column_0_N_name)s_index",
    "uq": "%(table_name)s_%(column_0_N_name)s_key",
    "ck": "%(table_name)s_%(constraint_name)s_check",
    "fk": "%(table_name)s_%(column_0_name)s_%(referred_table_name)s_fkey",
    "pk": "%(table_name)s_pkey",
}


def one_of(column: str, values: type[StrEnum]) -> Enum:
    """Text with a CHECK, read back as the enumeration's members."""
    return Enum(
        values,
        name=column,
        native_enum=False,
        create_constraint=True,
        length=32,
        values_callable=lambda members: [member.value for member in members],
    )


class Table(DeclarativeBase):
    """Every table: text for strings, timestamptz for times, jsonb for objects."""

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
    """Return the condition of a partial index."""
    return text(f"{column} IN ({', '.join(repr(str(v)) for v in sorted(values))})")


# Shards that a worker may claim.
IS_TICKETED = "state IN ('ready') AND ticketed_at IS NOT NULL"
# Batches that an operator wants to see: something in them failed.
HAS_FAILED = "finished_at IS NOT NULL AND (num_failed > 0 OR status IN ('expired', 'failed'))"


def created_now() -> MappedColumn[datetime]:
    """Return a column that says when its row was inserted."""
    return mapped_column(server_default=func.now())


class Owned:
    """Mixed into a table whose rows each belong to a tenant: a tenant's store sees no others."""

    tenant_id: Mapped[str] = mapped_column(server_default=DEFAULT_TENANT)


class BatchRow(Owned, Table):
    """What a customer submitted, with the counts of what has become of it."""

    __tablename__ = "batches"
    __table_args__ = (
        CheckConstraint("num_completed + num_failed + num_cancelled <= num_requests", name="counts"),
        Index(None, "created_at", "id"),
        Index(None, "retry_of", postgresql_where=text("retry_of IS NOT NULL")),
        Index(None, "tenant_id", "created_at", "id"),
        Index("batches_live_index", "expires_at", postgresql_where=is_in("status", LIVE_STATUSES)),
        Index(
            "batches_finished_index",
            "finished_at",
            postgresql_where=text("finished_at IS NOT NULL AND results_dropped_at IS NULL"),
        ),
        Index("batches_failures_index", "finished_at", postgresql_where=text(HAS_FAILED)),
        {"postgresql_with": {"fillfactor": 80, "autovacuum_vacuum_scale_factor": 0.02}},
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    status: Mapped[BatchStatus]
    lane: Mapped[Lane] = mapped_column(server_default=Lane.BATCH.value)
    params: Mapped[dict[str, Any]]  # SamplingParams for every request that has none of its own
    metadata_: Mapped[dict[str, Any]] = mapped_column("metadata")
    priority: Mapped[int] = mapped_column(server_default="0")  # higher runs sooner
    callback_url: Mapped[str | None]
    # The model it was accepted for; None: any worker may run it, as before models were recorded.
    model_name: Mapped[str | None]
    model_fingerprint: Mapped[str | None]
    model_tokenizer: Mapped[str | None]  # by which its tokens were counted: worker.contract.models.Model

    input_file_id: Mapped[str | None]  # None: its requests came with it
    num_unread: Mapped[int] = mapped_column(server_default="0")  # lines of that file without a request yet
    num_requests: Mapped[int]
    num_completed: Mapped[int] = mapped_column(server_default="0")
    num_failed: Mapped[int] = mapped_column(server_default="0")
    num_cancelled: Mapped[int] = mapped_column(server_default="0")

    num_prompt_tokens: Mapped[int]  # of every request
    max_output_tokens: Mapped[int]  # the most that every request can generate together
    settled_max_tokens: Mapped[int] = mapped_column(server_default="0")  # the same of those with a result
    input_tokens: Mapped[int] = mapped_column(server_default="0")  # usage, of those with a result
    cached_tokens: Mapped[int] = mapped_column(server_default="0")
    output_tokens: Mapped[int] = mapped_column(server_default="0")
    stored_bytes: Mapped[int] = mapped_column(server_default="0")  # prompts, and outputs so far

    cache: Mapped[CacheMode] = mapped_column(server_default=CacheMode.OFF)
    cache_similarity: Mapped[float | None]  # the least at which a semantic answer is taken
    num_deduplicated: Mapped[int] = mapped_column(server_default="0")  # answered by an identical request
    num_cache_hits: Mapped[int] = mapped_column(server_default="0")  # answered by a cache
    prefill_seconds: Mapped[float] = mapped_column(server_default="0")  # of the device
    decode_seconds: Mapped[float] = mapped_column(server_default="0")
    padding_seconds: Mapped[float] = mapped_column(server_default="0")

    created_at: Mapped[datetime] = created_now()
    started_at: Mapped[datetime | None]
    cancelled_at: Mapped[datetime | None]  # when the cancel was asked for
    expires_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]
    paused_at: Mapped[datetime | None]  # None: it may run
    results_dropped_at: Mapped[datetime | None]  # when retention took its requests and results

    max_failed: Mapped[int | None]  # more failed requests than this stop it
    max_total_tokens: Mapped[int | None]  # input and output; reaching it stops it
    error_code: Mapped[str | None]  # of the rule that stopped it
    error_message: Mapped[str | None]
    retry_of: Mapped[str | None] = mapped_column(ForeignKey("batches.id", ondelete="SET NULL"))
    has_cancelled_requests: Mapped[bool] = mapped_column(server_default=false())  # while it ran

    completed_output_tokens: Mapped[int] = mapped_column(server_default="0")
    num_cut: Mapped[int] = mapped_column(server_default="0")  # completed ones that their limit ended
    # From submission to end, as the costs of Steps said. None: nothing was measured, or it was paused since.
    forecast_seconds: Mapped[float | None]
    tokens_per_second: Mapped[float | None]  # output, smoothed over its saves
    measured_tokens: Mapped[int | None]  # output tokens when the rate was last measured
    measured_at: Mapped[datetime | None]

    @property
    def num_settled(self) -> int:
        """Requests that have a result."""
        return self.num_completed + self.num_failed + self.num_cancelled


class ShardRow(Owned, Table):
    """The slice of a Batch that one message carries: the unit of claim, lease and retry."""

    __tablename__ = "shards"
    __table_args__ = (
        Index(None, "batch_id"),
        Index(
            "shards_due_index",
            "model_fingerprint",
            "tenant_id",
            text("priority DESC"),
            "expires_at",
            "id",
            postgresql_where=is_in("state", {ShardState.READY}),
        ),
        Index(
            "shards_fewest_index",
            "model_fingerprint",
            "tenant_id",
            text("priority DESC"),
            "position",
            "expires_at",
            "id",
            postgresql_where=is_in("state", {ShardState.READY}),
        ),
        Index("shards_ticketed_index", "virtual_start", postgresql_where=text(IS_TICKETED)),
        Index(
            "shards_ticketed_due_index",
            "tenant_id",
            text("priority DESC"),
            "expires_at",
            "id",
            postgresql_where=text(IS_TICKETED),
        ),
        Index(
            "shards_ticketed_fewest_index",
            "tenant_id",
            text("priority DESC"),
            "position",
            "expires_at",
            "id",
            postgresql_where=text(IS_TICKETED),
        ),
        Index(
            "shards_running_index", "lease_expires_at", postgresql_where=is_in("state", {ShardState.RUNNING})
        ),
        Index("shards_begun_index", "id", postgresql_where=text("state IN ('ready') AND fence > 0")),
        Index(
            "shards_interactive_index",
            "id",
            postgresql_where=text("state IN ('ready') AND lane IN ('interactive')"),
        ),
        {"postgresql_with": {"fillfactor": 70, "autovacuum_vacuum_scale_factor": 0.02}},
    )

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    batch_id: Mapped[str] = mapped_column(ForeignKey("batches.id", ondelete="CASCADE"))
    position: Mapped[int]
    state: Mapped[ShardState]
    lane: Mapped[Lane] = mapped_column(server_default=Lane.BATCH.value)
    priority: Mapped[int]
    expires_at: Mapped[datetime | None]  # its batch's
    # Its batch's; "" for any model, as an index is not in order of the other columns where one is NULL.
    model_fingerprint: Mapped[str] = mapped_column(server_default="")
    num_requests: Mapped[int]
    is_suspect: Mapped[bool] = mapped_column(server_default=false())  # it runs alone: it may kill its worker

    fence: Mapped[int] = mapped_column(server_default="0")  # rises with every claim, never otherwise
    attempts: Mapped[int] = mapped_column(server_default="0")  # claims that did not end in a release
    worker: Mapped[str | None]
    lease_expires_at: Mapped[datetime | None]
    running_tokens: Mapped[int] = mapped_column(server_default="0")  # of requests without a result yet

    num_tickets: Mapped[int] = mapped_column(server_default="0")
    ticketed_at: Mapped[datetime | None]
    virtual_start: Mapped[float | None]  # its place among all tenants', given with the first ticket


class RequestRow(Table):
    """One prompt. Its Result is a row of its own; only a cancel and a bisected shard touch this one."""

    __tablename__ = "requests"
    __table_args__ = (
        Index(None, "batch_id", "position", unique=True),
        Index(None, "shard_id"),
        Index(
            "requests_custom_id_key",
            "batch_id",
            "custom_id",
            unique=True,
            postgresql_where=text("custom_id IS NOT NULL"),
        ),
    )

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    batch_id: Mapped[str]
    shard_id: Mapped[int] = mapped_column(ForeignKey("shards.id", ondelete="CASCADE"))
    position: Mapped[int]  # in the batch, from 0
    custom_id: Mapped[str | None]
    kind: Mapped[RequestKind] = mapped_column(server_default=RequestKind.GENERATION.value)
    prompt: Mapped[str]
    inputs: Mapped[list[Any] | None]  # several prompts, or token ids, instead of `prompt`
    add_special_tokens: Mapped[bool]  # false where a chat template has written them already
    params: Mapped[dict[str, Any] | None]  # of its kind; None: the batch's
    is_streamed: Mapped[bool] = mapped_column(
        server_default=text("false")
    )  # its tokens are told as they come
    max_tokens: Mapped[int]  # of one choice: its own, or what its prompt leaves of the model's context
    num_prompt_tokens: Mapped[int]
    cancelled_at: Mapped[datetime | None]  # when its cancel was asked for, while it ran
    digest: Mapped[bytes | None]  # identical requests of a shard share it; None: each is run
    cache: Mapped[CacheMode | None]  # None: the batch's


class PartialOutputRow(Table):
    """What a Request without a Result had generated when this was saved."""

    __tablename__ = "partial_outputs"

    request_id: Mapped[int] = mapped_column(ForeignKey("requests.id", ondelete="CASCADE"), primary_key=True)
    model_id: Mapped[int | None]  # whose tokens they are; of `served_models`
    token_ids: Mapped[list[int]]
    text: Mapped[str] = mapped_column("output")
    saved_at: Mapped[datetime] = mapped_column(server_default=func.now(), onupdate=func.now())


class RequestAttemptRow(Table):
    """One try at a Request that brought no Result, and why."""

    __tablename__ = "request_attempts"

    request_id: Mapped[int] = mapped_column(ForeignKey("requests.id", ondelete="CASCADE"), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)  # from 1
    worker: Mapped[str | None]
    cause: Mapped[AttemptCause]
    ended_at: Mapped[datetime] = mapped_column(server_default=func.now())


class ResultRow(Table):
    """A Request's outcome. The primary key is the promise: one each."""

    __tablename__ = "results"
    __table_args__ = (Index(None, "batch_id", "sequence", unique=True),)

    request_id: Mapped[int] = mapped_column(ForeignKey("requests.id", ondelete="CASCADE"), primary_key=True)
    batch_id: Mapped[str]
    sequence: Mapped[int]  # order of completion in the batch, from 1 and without gaps
    outcome: Mapped[Outcome]
    output: Mapped[str | None]
    finish_reason: Mapped[str | None]
    model_id: Mapped[int | None]  # that made it, of `served_models`; None: none did
    payload: Mapped[dict[str, Any] | None]  # worker.contract.results.Payload
    num_prompt_tokens: Mapped[int]
    num_cached_tokens: Mapped[int]
    num_output_tokens: Mapped[int]
    error_code: Mapped[str | None]
    error_message: Mapped[str | None]
    source: Mapped[Source] = mapped_column(server_default=Source.ENGINE)
    similarity: Mapped[float | None]
    prefill_seconds: Mapped[float] = mapped_column(server_default="0")
    decode_seconds: Mapped[float] = mapped_column(server_default="0")
    padding_seconds: Mapped[float] = mapped_column(server_default="0")
    created_at: Mapped[datetime] = created_now()


class IdempotencyKeyRow(Owned, Table):
    """A client's promise that two submissions are one."""

    __tablename__ = "idempotency_keys"
    __table_args__ = (Index(None, "created_at"),)

    tenant_id: Mapped[str] = mapped_column(server_default=DEFAULT_TENANT, primary_key=True)
    key: Mapped[str] = mapped_column(primary_key=True)
    fingerprint: Mapped[str]  # SHA-256 of the body, hexadecimal
    batch_id: Mapped[str] = mapped_column(ForeignKey("batches.id", ondelete="CASCADE"))
    created_at: Mapped[datetime] = created_now()


class WorkerRow(Table):
    """A worker process that serves a queue, and when it was last seen alive."""

    __tablename__ = "workers"
    __table_args__ = ({"postgresql_with": {"fillfactor": 50, "autovacuum_vacuum_threshold": 500}},)

    name: Mapped[str] = mapped_column(primary_key=True)
    queue: Mapped[str]
    slots: Mapped[int]
    model_fingerprint: Mapped[str | None]  # that it serves
    info: Mapped[dict[str, Any]]
    started_at: Mapped[datetime] = created_now()
    seen_at: Mapped[datetime] = mapped_column(server_default=func.now())
