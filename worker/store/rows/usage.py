"""Table of usage: what tenants used."""

from datetime import datetime
from typing import Any

from sqlalchemy import Identity, Index
from sqlalchemy.orm import Mapped, mapped_column

from worker.store.rows.table import Owned, TableRow


class UsageRow(Owned, TableRow):
    """Usage of a tenant and model in the minute that begins then; once that is old, on the day.

    Each transaction that adds to usage inserts a row, so that none waits for another. Rows are folded into
    their sums from time to time. They stay when their batch is deleted: they are the bill.
    """

    __tablename__ = "usage"
    __table_args__ = (
        Index(None, "tenant_id", "minute"),
        Index(None, "minute"),
        {"postgresql_with": {"autovacuum_vacuum_threshold": 500}},
    )

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    minute: Mapped[datetime]
    model: Mapped[str] = mapped_column(server_default="")  # fingerprint; "": no model
    readings: Mapped[dict[str, Any]]  # worker.contract.usage
