"""What has ended."""

from sqlalchemy import Identity, Index
from sqlalchemy.orm import Mapped, mapped_column

from worker.contract.states import BatchStatus
from worker.store.rows.table import Owned, Table


class BatchCountRow(Owned, Table):
    """Batches of a tenant that have ended in a status; what counts is the sum of such rows."""

    __tablename__ = "batch_counts"
    __table_args__ = (
        Index(None, "tenant_id"),
        {"postgresql_with": {"autovacuum_vacuum_threshold": 500}},
    )

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    status: Mapped[BatchStatus]
    count: Mapped[int]  # -1: one of them was deleted
