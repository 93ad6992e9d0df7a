"""Table of counts of ended batches."""

from sqlalchemy import Identity, Index
from sqlalchemy.orm import Mapped, mapped_column

from worker.contract.states import BatchStatus
from worker.store.rows.table import Owned, TableRow


class BatchCountRow(Owned, TableRow):
    """A count of a tenant's batches that ended in a status; the sum of such rows is the total."""

    __tablename__ = "batch_counts"
    __table_args__ = (
        Index(None, "tenant_id"),
        {"postgresql_with": {"autovacuum_vacuum_threshold": 500}},
    )

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    status: Mapped[BatchStatus]
    count: Mapped[int]  # -1: a batch was deleted
