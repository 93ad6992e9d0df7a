"""Table of the models that have made results."""

from datetime import datetime

from sqlalchemy import Identity, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from worker.store.rows.table import TableRow, created_now


class ServedModelRow(TableRow):
    """A model as workers have run it. Results name it by its id; rows are never deleted."""

    __tablename__ = "served_models"
    __table_args__ = (UniqueConstraint("fingerprint", "name", "weight_format", "dtype"),)

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    name: Mapped[str]
    fingerprint: Mapped[str]
    weight_format: Mapped[str]
    dtype: Mapped[str]
    created_at: Mapped[datetime] = created_now()
