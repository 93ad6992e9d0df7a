"""The response cache."""

from datetime import datetime
from typing import Any

from sqlalchemy import Index, text
from sqlalchemy.dialects.postgresql import ARRAY, REAL
from sqlalchemy.orm import Mapped, mapped_column

from worker.store.rows.table import Owned, Table, created_now


class CachedResponseRow(Owned, Table):
    """A deterministic request's answer, for whoever of its tenant asks the same of the same model."""

    __tablename__ = "cached_responses"
    __table_args__ = (
        Index(None, "expires_at"),
        Index("cached_responses_group_index", "group", postgresql_where=text("embedding IS NOT NULL")),
    )

    key: Mapped[bytes] = mapped_column(primary_key=True)  # of tenant, model, prompt and sampling
    group: Mapped[bytes]  # of tenant, model and sampling: what a semantic answer must share
    payload: Mapped[dict[str, Any]]  # of the Result, column by column
    # Of the prompt. An array, so that the table is there where pgvector is not; searches cast it.
    embedding: Mapped[list[float] | None] = mapped_column(ARRAY(REAL))
    created_at: Mapped[datetime] = created_now()
    expires_at: Mapped[datetime]
