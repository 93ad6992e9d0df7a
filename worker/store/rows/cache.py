"""Table of the response cache."""

from datetime import datetime
from typing import Any

from sqlalchemy import Index, text
from sqlalchemy.dialects.postgresql import ARRAY, REAL
from sqlalchemy.orm import Mapped, mapped_column

from worker.store.rows.table import Owned, TableRow, created_now


class CachedResponseRow(Owned, TableRow):
    """A deterministic request's answer, for its tenant's later requests to the same model."""

    __tablename__ = "cached_responses"
    __table_args__ = (
        Index(None, "expires_at"),
        Index("cached_responses_group_index", "group", postgresql_where=text("embedding IS NOT NULL")),
    )

    key: Mapped[bytes] = mapped_column(primary_key=True)  # digest of tenant, model, prompt and sampling
    # Digest of tenant, model, sampling, embedding model and marks: what a semantic hit must share.
    group: Mapped[bytes]
    payload: Mapped[dict[str, Any]]  # columns of the Result, by name
    # Of the prompt. An array, so that the table works without pgvector; searches cast it.
    embedding: Mapped[list[float] | None] = mapped_column(ARRAY(REAL))
    created_at: Mapped[datetime] = created_now()
    expires_at: Mapped[datetime]
