"""Table of meter readings."""

from datetime import datetime
from typing import Any

from sqlalchemy import Index
from sqlalchemy.orm import Mapped, mapped_column

from worker.store.rows.table import TableRow


class MeterRow(TableRow):
    """The readings of one process, model and minute.

    Only that process writes the row, except rows of folded sums, which have several writers.
    """

    __tablename__ = "meters"
    __table_args__ = (
        Index(None, "minute"),
        {"postgresql_with": {"fillfactor": 50, "autovacuum_vacuum_threshold": 500}},
    )

    worker: Mapped[str] = mapped_column(primary_key=True)
    minute: Mapped[datetime] = mapped_column(primary_key=True)
    model: Mapped[str] = mapped_column(server_default="", primary_key=True)  # fingerprint; "": no model
    readings: Mapped[dict[str, Any]]
