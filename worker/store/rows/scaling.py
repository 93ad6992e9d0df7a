"""Table of wanted workers, which autoscalers read."""

from datetime import datetime
from typing import Any

from sqlalchemy.orm import Mapped, mapped_column

from worker.store.rows.table import TableRow


class WantedWorkersRow(TableRow):
    """How many gpu workers a model's deadlines need, as the dispatcher last decided. Rows stay."""

    __tablename__ = "wanted_workers"

    model_fingerprint: Mapped[str] = mapped_column(primary_key=True)
    model_name: Mapped[str]
    wanted: Mapped[int]  # of both capacity types together
    on_demand: Mapped[int]
    spot: Mapped[int]
    num_ready: Mapped[int]  # live workers
    num_loading: Mapped[int]
    num_requests: Mapped[int]  # without a result
    num_tokens: Mapped[int]  # of prompts and expected outputs, still to be computed
    work_seconds: Mapped[float]  # of one worker, at the upper end of the estimate
    due_at: Mapped[datetime | None]  # the earliest deadline of that work
    engine: Mapped[dict[str, Any] | None]  # the last info of a worker that knew the Costs of its Steps
    cold_start_seconds: Mapped[float | None]  # measured. None: not yet
    short_since: Mapped[datetime | None]  # since when more workers are wanted than are ready
    decided_at: Mapped[datetime]
