"""Table of responses, each a batch of one request in OpenAI's newer form."""

from typing import Any

from sqlalchemy import JSON, ForeignKey, Index, text, true
from sqlalchemy.orm import Mapped, mapped_column

from worker.store.rows.table import Owned, TableRow


class ResponseRow(Owned, TableRow):
    """A response's request, and the conversation that it continues. Its output is the batch's one Result."""

    __tablename__ = "responses"
    __table_args__ = (Index("responses_unstored_index", "batch_id", postgresql_where=text("NOT is_stored")),)

    batch_id: Mapped[str] = mapped_column(ForeignKey("batches.id", ondelete="CASCADE"), primary_key=True)
    is_stored: Mapped[bool] = mapped_column(server_default=true())  # False: it goes when its batch has ended
    # JSON, not JSONB, which loses the order of a schema's keys.
    request: Mapped[dict[str, Any]] = mapped_column(JSON)  # as sent, without its input
    items: Mapped[list[Any]] = mapped_column(JSON)  # the whole input: earlier responses' items, then its own
