"""Table of worker processes."""

from datetime import datetime
from typing import Any

from sqlalchemy import false, func
from sqlalchemy.orm import Mapped, mapped_column

from worker.store.rows.table import TableRow, created_now


class WorkerRow(TableRow):
    """A worker process that serves a queue, and when it was last seen alive."""

    __tablename__ = "workers"
    __table_args__ = ({"postgresql_with": {"fillfactor": 50, "autovacuum_vacuum_threshold": 500}},)

    name: Mapped[str] = mapped_column(primary_key=True)
    queue: Mapped[str]
    slots: Mapped[int]
    model_fingerprint: Mapped[str | None]  # of the model that it serves
    info: Mapped[dict[str, Any]]
    must_clear_cache: Mapped[bool] = mapped_column(server_default=false())  # its prefix cache
    started_at: Mapped[datetime] = created_now()
    seen_at: Mapped[datetime] = mapped_column(server_default=func.now())
