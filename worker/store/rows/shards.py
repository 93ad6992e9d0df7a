"""The table of shards."""

from datetime import datetime

from sqlalchemy import (
    ForeignKey,
    Identity,
    Index,
    false,
    text,
)
from sqlalchemy.orm import Mapped, mapped_column

from worker.contract.states import Lane, ShardState
from worker.store.rows.table import IS_TICKETED, Owned, Table, is_in


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
