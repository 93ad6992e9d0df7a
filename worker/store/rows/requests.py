"""Tables of requests, their attempts, their partial outputs and their results."""

from datetime import datetime
from typing import Any

from sqlalchemy import (
    ForeignKey,
    Identity,
    Index,
    false,
    func,
    text,
)
from sqlalchemy.orm import Mapped, mapped_column

from worker.contract.states import AttemptCause
from worker.store.rows.table import Copier, TableRow, copied_by, created_now
from worker.values.caching import CacheMode, Source
from worker.values.outcomes import Outcome
from worker.values.requests import RequestKind

ASKED_FOR = copied_by(Copier.RETRY)  # by the customer
ANSWER = copied_by(Copier.DUPLICATE, Copier.CACHE)
OF_DUPLICATES = copied_by(Copier.DUPLICATE)  # the same for identical requests, but not for later ones


class RequestRow(TableRow):
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
    custom_id: Mapped[str | None] = mapped_column(info=ASKED_FOR)
    kind: Mapped[RequestKind] = mapped_column(server_default=RequestKind.GENERATION.value, info=ASKED_FOR)
    prompt: Mapped[str] = mapped_column(info=ASKED_FOR)
    # Several prompts, or token ids, instead of `prompt`.
    inputs: Mapped[list[Any] | None] = mapped_column(info=ASKED_FOR)
    # False if a chat template has already written them.
    add_special_tokens: Mapped[bool] = mapped_column(info=ASKED_FOR)
    params: Mapped[dict[str, Any] | None] = mapped_column(info=ASKED_FOR)  # for its kind; None: the batch's
    is_streamed: Mapped[bool] = mapped_column(
        server_default=text("false"), info=ASKED_FOR
    )  # its tokens are sent as they come
    # Of one choice: as requested, or what the prompt leaves of the context.
    max_tokens: Mapped[int] = mapped_column(info=ASKED_FOR)
    num_prompt_tokens: Mapped[int] = mapped_column(info=ASKED_FOR)
    # From its batch's acceptance; without a result by then, it fails.
    timeout_seconds: Mapped[float | None] = mapped_column(info=ASKED_FOR)
    cancelled_at: Mapped[datetime | None]  # when its own cancel was requested
    # Identical requests of a shard share it; None: it runs by itself.
    digest: Mapped[bytes | None] = mapped_column(info=ASKED_FOR)
    cache: Mapped[CacheMode | None] = mapped_column(info=ASKED_FOR)  # None: the batch's
    # The oldest stored answer that it takes, and how long its own is kept; None: its batch's.
    cache_ttl_seconds: Mapped[float | None] = mapped_column(info=ASKED_FOR)
    endpoint: Mapped[str | None] = mapped_column(info=ASKED_FOR)  # of its line; None: its batch's
    # JSON that the customer wants back with the result; text, because jsonb does not take all of it.
    metadata_: Mapped[str | None] = mapped_column("metadata", info=ASKED_FOR)
    # worker.values.tool_loops.ToolLoop as JSON; text, as jsonb does not keep the order of keys.
    tool_loop: Mapped[str | None] = mapped_column(info=ASKED_FOR)
    # worker.quality.expected.Expected as JSON, by which outputs are judged; text, as is the metadata.
    expected: Mapped[str | None] = mapped_column(info=ASKED_FOR)
    is_wrong_line: Mapped[bool] = mapped_column(server_default=false())  # it failed before it could run


class PartialOutputRow(TableRow):
    """The tokens that a Request without a Result had generated at its last save."""

    __tablename__ = "partial_outputs"

    request_id: Mapped[int] = mapped_column(ForeignKey("requests.id", ondelete="CASCADE"), primary_key=True)
    model_id: Mapped[int | None]  # in `served_models`, the model whose tokens these are
    token_ids: Mapped[list[int]]
    text: Mapped[str] = mapped_column("output")
    started_at: Mapped[datetime | None]  # when the engine first ran it


class ToolTurnRow(TableRow):
    """One turn of a tool loop without a Result: its output, its calls, and their answers so far."""

    __tablename__ = "tool_turns"

    request_id: Mapped[int] = mapped_column(ForeignKey("requests.id", ondelete="CASCADE"), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)  # from 1
    said: Mapped[dict[str, Any]]  # worker.values.results.ToolTurn
    started_at: Mapped[datetime | None]  # when the engine first ran it


class RequestAttemptRow(TableRow):
    """One attempt at a Request that brought no Result, and its cause."""

    __tablename__ = "request_attempts"

    request_id: Mapped[int] = mapped_column(ForeignKey("requests.id", ondelete="CASCADE"), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)  # from 1
    worker: Mapped[str | None]
    cause: Mapped[AttemptCause]
    ended_at: Mapped[datetime] = mapped_column(server_default=func.now())


class ResultRow(TableRow):
    """A Request's outcome. The primary key guarantees at most one each."""

    __tablename__ = "results"
    __table_args__ = (
        Index(None, "batch_id", "sequence", unique=True),
        Index("results_uncounted_index", "batch_id", postgresql_where=text("sequence IS NULL")),
    )

    request_id: Mapped[int] = mapped_column(ForeignKey("requests.id", ondelete="CASCADE"), primary_key=True)
    batch_id: Mapped[str]
    # Order of completion in the batch, from 1 and without gaps; None: not counted yet, so no client sees it.
    sequence: Mapped[int | None]
    outcome: Mapped[Outcome] = mapped_column(info=ANSWER)
    output: Mapped[str | None] = mapped_column(info=ANSWER)
    finish_reason: Mapped[str | None] = mapped_column(info=ANSWER)
    # In `served_models`, the model that made it; None: none did.
    model_id: Mapped[int | None] = mapped_column(info=OF_DUPLICATES)
    payload: Mapped[dict[str, Any] | None] = mapped_column(info=ANSWER)  # worker.values.results.Payload
    num_prompt_tokens: Mapped[int] = mapped_column(info=ANSWER)
    num_cached_tokens: Mapped[int]
    num_output_tokens: Mapped[int] = mapped_column(info=ANSWER)
    error_code: Mapped[str | None] = mapped_column(info=ANSWER)
    error_message: Mapped[str | None] = mapped_column(info=ANSWER)
    source: Mapped[Source] = mapped_column(server_default=Source.ENGINE)
    similarity: Mapped[float | None] = mapped_column(info=OF_DUPLICATES)
    # Of a semantic hit that was not used, to check it. Not copied: it was checked once.
    hit_is_right: Mapped[bool | None]
    prefill_seconds: Mapped[float] = mapped_column(server_default="0")
    decode_seconds: Mapped[float] = mapped_column(server_default="0")
    padding_seconds: Mapped[float] = mapped_column(server_default="0")
    # When the engine first ran it; None: it never did.
    started_at: Mapped[datetime | None] = mapped_column(info=OF_DUPLICATES)
    # When it had its first output token; None: it has none, or an earlier run of it had.
    first_token_at: Mapped[datetime | None] = mapped_column(info=OF_DUPLICATES)
    created_at: Mapped[datetime] = created_now()
