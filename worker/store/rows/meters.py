"""What the workers measure."""

from datetime import datetime
from typing import Any

from sqlalchemy import Index
from sqlalchemy.orm import Mapped, mapped_column

from worker.store.rows.table import Table


class MeterRow(Table):
    """What one process counted in one minute. Its only writer is that process."""

    __tablename__ = "meters"
    __table_args__ = (
        Index(None, "minute"),
        {"postgresql_with": {"fillfactor": 50, "autovacuum_vacuum_threshold": 500}},
    )

    worker: Mapped[str] = mapped_column(primary_key=True)
    minute: Mapped[datetime] = mapped_column(primary_key=True)
    model: Mapped[str] = mapped_column(server_default="", primary_key=True)  # its fingerprint; "": of none
    readings: Mapped[dict[str, Any]]
