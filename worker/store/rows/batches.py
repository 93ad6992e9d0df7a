"""Tables of batches and of idempotency keys."""

from datetime import datetime
from typing import Any

from sqlalchemy import (
    CheckConstraint,
    ForeignKey,
    Index,
    false,
    text,
)
from sqlalchemy.orm import Mapped, mapped_column

from worker.contract.access import DEFAULT_TENANT
from worker.contract.states import LIVE_STATUSES, BatchStatus, Lane
from worker.store.rows.table import Copier, Owned, TableRow, copied_by, created_now, is_in
from worker.values.caching import CacheMode

ASKED_FOR = copied_by(Copier.RETRY)  # by the customer
# Condition of finished batches with a failure, which an operator wants to see.
HAS_FAILED = "finished_at IS NOT NULL AND (num_failed > 0 OR status IN ('expired', 'failed'))"

# Condition of batches that wait for the time of their start.
IS_SCHEDULED = "start_after IS NOT NULL AND paused_at IS NOT NULL AND status IN ('pending')"


class BatchRow(Owned, TableRow):
    """A batch as its customer submitted it, with counts of its results and its usage."""

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
        Index(
            "batches_endpoint_index",
            "tenant_id",
            "endpoint",
            "created_at",
            "id",
            postgresql_where=text("endpoint IS NOT NULL"),
        ),
        Index("batches_failures_index", "finished_at", postgresql_where=text(HAS_FAILED)),
        Index(
            "batches_name_index",
            "tenant_id",
            "name",
            "created_at",
            "id",
            postgresql_where=text("name IS NOT NULL"),
        ),
        Index(
            "batches_metadata_index",
            "metadata",
            postgresql_using="gin",
            postgresql_ops={"metadata": "jsonb_path_ops"},
        ),
        Index("batches_scheduled_index", "start_after", postgresql_where=text(IS_SCHEDULED)),
        {"postgresql_with": {"fillfactor": 80, "autovacuum_vacuum_scale_factor": 0.02}},
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    status: Mapped[BatchStatus]
    lane: Mapped[Lane] = mapped_column(server_default=Lane.BATCH.value)
    params: Mapped[dict[str, Any]] = mapped_column(info=ASKED_FOR)  # for requests without their own
    name: Mapped[str | None] = mapped_column(info=ASKED_FOR)  # as its customer calls it; others may share it
    metadata_: Mapped[dict[str, Any]] = mapped_column("metadata", info=ASKED_FOR)
    priority: Mapped[int] = mapped_column(server_default="0", info=ASKED_FOR)  # higher runs sooner
    callback_url: Mapped[str | None] = mapped_column(info=ASKED_FOR)
    # The model it was accepted for. None: any worker may run it, as it predates the recording of models.
    model_name: Mapped[str | None] = mapped_column(info=ASKED_FOR)
    model_fingerprint: Mapped[str | None] = mapped_column(info=ASKED_FOR)
    # That counted its tokens: worker.contract.models.Model.
    model_tokenizer: Mapped[str | None] = mapped_column(info=ASKED_FOR)
    is_mixed: Mapped[bool] = mapped_column(server_default=false())  # each of its models has a BatchModelRow

    # The route whose bodies its requests have, of a batch that came so in one call. None: any other batch.
    endpoint: Mapped[str | None] = mapped_column(info=ASKED_FOR)
    # None: its requests came in the call.
    input_file_id: Mapped[str | None] = mapped_column(info=ASKED_FOR)
    num_unread: Mapped[int] = mapped_column(server_default="0")  # lines of that file, not yet requests
    num_requests: Mapped[int]
    num_completed: Mapped[int] = mapped_column(server_default="0")
    num_failed: Mapped[int] = mapped_column(server_default="0")
    num_cancelled: Mapped[int] = mapped_column(server_default="0")

    num_prompt_tokens: Mapped[int]  # of all requests
    max_output_tokens: Mapped[int]  # the most that all requests can generate together
    settled_max_tokens: Mapped[int] = mapped_column(server_default="0")  # the same of those with a result
    input_tokens: Mapped[int] = mapped_column(server_default="0")  # usage of requests with a result
    cached_tokens: Mapped[int] = mapped_column(server_default="0")
    output_tokens: Mapped[int] = mapped_column(server_default="0")
    reasoning_tokens: Mapped[int] = mapped_column(server_default="0")  # of the output tokens
    stored_bytes: Mapped[int] = mapped_column(server_default="0")  # prompts, and outputs so far

    cache: Mapped[CacheMode] = mapped_column(server_default=CacheMode.OFF, info=ASKED_FOR)
    cache_similarity: Mapped[float | None] = mapped_column(info=ASKED_FOR)  # the least for a semantic hit
    cache_ttl_seconds: Mapped[float | None] = mapped_column(info=ASKED_FOR)  # None: the deployment's
    num_deduplicated: Mapped[int] = mapped_column(server_default="0")  # answered by an identical request
    num_cache_hits: Mapped[int] = mapped_column(server_default="0")  # answered by a cache
    prefill_seconds: Mapped[float] = mapped_column(server_default="0")  # device seconds
    decode_seconds: Mapped[float] = mapped_column(server_default="0")
    padding_seconds: Mapped[float] = mapped_column(server_default="0")
    cost_billionths: Mapped[int] = mapped_column(server_default="0")  # of the currency, at the prices of then

    created_at: Mapped[datetime] = created_now()
    started_at: Mapped[datetime | None]
    cancelled_at: Mapped[datetime | None]  # when the cancel was asked for
    expires_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]
    paused_at: Mapped[datetime | None]  # None: it may run
    # Not copied by a retry, which starts at once. While it is paused too: when it is to start by itself.
    start_after: Mapped[datetime | None]
    results_dropped_at: Mapped[datetime | None]  # when retention deleted its requests and results

    max_failed: Mapped[int | None] = mapped_column(info=ASKED_FOR)  # more failed requests stop it
    max_total_tokens: Mapped[int | None] = mapped_column(info=ASKED_FOR)  # input and output; stops it
    error_code: Mapped[str | None]  # why it failed, as by a stop rule
    error_message: Mapped[str | None]
    retry_of: Mapped[str | None] = mapped_column(ForeignKey("batches.id", ondelete="SET NULL"))
    has_cancelled_requests: Mapped[bool] = mapped_column(server_default=false())  # cancelled singly

    completed_output_tokens: Mapped[int] = mapped_column(server_default="0")
    num_cut: Mapped[int] = mapped_column(server_default="0")  # completed requests that hit their limit
    # From submission to end, by the costs of Steps. None: no costs were measured, or it was paused since.
    forecast_seconds: Mapped[float | None]
    tokens_per_second: Mapped[float | None]  # of output, smoothed over saves
    measured_tokens: Mapped[int | None]  # output tokens when the rate was last measured
    measured_at: Mapped[datetime | None]

    @property
    def num_settled(self) -> int:
        """The number of requests that have a result."""
        return self.num_completed + self.num_failed + self.num_cancelled


class BatchModelRow(TableRow):
    """One of the models that run a mixed batch, and counts of the requests that it runs.

    The names of the counts, and what they mean, are those of the batch's own.
    """

    __tablename__ = "batch_models"

    batch_id: Mapped[str] = mapped_column(ForeignKey("batches.id", ondelete="CASCADE"), primary_key=True)
    model_fingerprint: Mapped[str] = mapped_column(primary_key=True)
    model_name: Mapped[str]
    model_tokenizer: Mapped[str]
    num_requests: Mapped[int] = mapped_column(server_default="0")  # without lines that are not read yet
    num_prompt_tokens: Mapped[int] = mapped_column(server_default="0")
    max_output_tokens: Mapped[int] = mapped_column(server_default="0")
    num_completed: Mapped[int] = mapped_column(server_default="0")
    num_failed: Mapped[int] = mapped_column(server_default="0")
    num_cancelled: Mapped[int] = mapped_column(server_default="0")
    num_cut: Mapped[int] = mapped_column(server_default="0")
    settled_max_tokens: Mapped[int] = mapped_column(server_default="0")
    input_tokens: Mapped[int] = mapped_column(server_default="0")
    cached_tokens: Mapped[int] = mapped_column(server_default="0")
    output_tokens: Mapped[int] = mapped_column(server_default="0")
    completed_output_tokens: Mapped[int] = mapped_column(server_default="0")
    cost_billionths: Mapped[int] = mapped_column(server_default="0")

    @property
    def num_settled(self) -> int:
        """The number of its requests that have a result."""
        return self.num_completed + self.num_failed + self.num_cancelled


class IdempotencyKeyRow(Owned, TableRow):
    """An idempotency key and the batch that its first submission made."""

    __tablename__ = "idempotency_keys"
    __table_args__ = (Index(None, "created_at"),)

    tenant_id: Mapped[str] = mapped_column(server_default=DEFAULT_TENANT, primary_key=True)
    key: Mapped[str] = mapped_column(primary_key=True)
    fingerprint: Mapped[str]  # SHA-256 of the body, hexadecimal
    batch_id: Mapped[str] = mapped_column(ForeignKey("batches.id", ondelete="CASCADE"))
    created_at: Mapped[datetime] = created_now()
