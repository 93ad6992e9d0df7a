"""Tables of requests, their attempts, their partial outputs and their results."""

from datetime import datetime
from typing import Any

from sqlalchemy import (
    ForeignKey,
    Identity,
    Index,
    func,
    text,
)
from sqlalchemy.orm import Mapped, mapped_column

from worker.contract.states import AttemptCause
from worker.store.rows.table import Table, created_now
from worker.values.caching import CacheMode, Source
from worker.values.outcomes import Outcome
from worker.values.requests import RequestKind


class RequestRow(Table):
    """One Request of a Batch, as submitted.

    Its Result is a row of its own. Only a cancel, a bisected shard or a reassignment changes this row.
    """

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
    add_special_tokens: Mapped[bool]  # false if a chat template has already written them
    params: Mapped[dict[str, Any] | None]  # for its kind; None: the batch's
    is_streamed: Mapped[bool] = mapped_column(
        server_default=text("false")
    )  # its tokens are sent as they come
    max_tokens: Mapped[int]  # of one choice: as requested, or what the prompt leaves of the context
    num_prompt_tokens: Mapped[int]
    cancelled_at: Mapped[datetime | None]  # when its own cancel was requested
    digest: Mapped[bytes | None]  # identical requests of a shard share it; None: it runs by itself
    cache: Mapped[CacheMode | None]  # None: the batch's


class PartialOutputRow(Table):
    """The tokens that a Request without a Result had generated at `saved_at`."""

    __tablename__ = "partial_outputs"

    request_id: Mapped[int] = mapped_column(ForeignKey("requests.id", ondelete="CASCADE"), primary_key=True)
    model_id: Mapped[int | None]  # in `served_models`, the model whose tokens these are
    token_ids: Mapped[list[int]]
    text: Mapped[str] = mapped_column("output")
    saved_at: Mapped[datetime] = mapped_column(server_default=func.now(), onupdate=func.now())


class RequestAttemptRow(Table):
    """One attempt at a Request that brought no Result, and its cause."""

    __tablename__ = "request_attempts"

    request_id: Mapped[int] = mapped_column(ForeignKey("requests.id", ondelete="CASCADE"), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)  # from 1
    worker: Mapped[str | None]
    cause: Mapped[AttemptCause]
    ended_at: Mapped[datetime] = mapped_column(server_default=func.now())


class ResultRow(Table):
    """A Request's outcome. The primary key guarantees at most one each."""

    __tablename__ = "results"
    __table_args__ = (Index(None, "batch_id", "sequence", unique=True),)

    request_id: Mapped[int] = mapped_column(ForeignKey("requests.id", ondelete="CASCADE"), primary_key=True)
    batch_id: Mapped[str]
    sequence: Mapped[int]  # order of completion in the batch, from 1 and without gaps
    outcome: Mapped[Outcome]
    output: Mapped[str | None]
    finish_reason: Mapped[str | None]
    model_id: Mapped[int | None]  # in `served_models`, the model that made it; None: none did
    payload: Mapped[dict[str, Any] | None]  # worker.values.results.Payload
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
