"""Tables of experiments and of the requests that they compare."""

from datetime import datetime

from sqlalchemy import ForeignKey, Index, false, text
from sqlalchemy.orm import Mapped, mapped_column

from worker.contract.states import ExperimentMode, ExperimentStatus
from worker.quality.comparison import Verdict
from worker.store.rows.table import Owned, TableRow, created_now, one_of


class ExperimentRow(Owned, TableRow):
    """An experiment on a Batch: some of its Requests run under another Model too, in a Batch of their own."""

    __tablename__ = "experiments"
    __table_args__ = (
        Index(None, "tenant_id", "created_at", "id"),
        Index(None, "batch_id"),
        Index("experiments_open_index", "created_at", postgresql_where=text("closed_at IS NULL")),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    batch_id: Mapped[str]
    mode: Mapped[ExperimentMode] = mapped_column(
        one_of("mode", ExperimentMode), server_default=ExperimentMode.SHADOW.value
    )
    # The Batch of the other Model, in mode shadow. None: the lines of the Batch's file are still being read.
    shadow_id: Mapped[str | None]
    # The Batch's Model when it began, None: any; and the other one. A retry copies none of this.
    base_name: Mapped[str | None]
    base_fingerprint: Mapped[str | None]
    model_name: Mapped[str]
    model_fingerprint: Mapped[str]
    status: Mapped[ExperimentStatus] = mapped_column(
        one_of("status", ExperimentStatus), server_default=ExperimentStatus.RUNNING.value
    )
    verdict: Mapped[Verdict] = mapped_column(
        one_of("verdict", Verdict), server_default=Verdict.UNDECIDED.value
    )
    share: Mapped[float]
    allowed_loss: Mapped[float]
    resolution: Mapped[float]
    num_planned: Mapped[int]  # judged Requests that find the loss, as said beforehand
    # That run under both, or of which another runs under the other Model. 0: none has been read yet.
    num_requests: Mapped[int]
    num_expected: Mapped[int]  # of these, with a reference answer
    num_seen: Mapped[int] = mapped_column(server_default="0")  # Results of both Batches at the last look
    created_at: Mapped[datetime] = created_now()
    ended_at: Mapped[datetime | None]
    closed_at: Mapped[datetime | None]  # when nothing was left to do, the end of the other Batch included


class ExperimentLineRow(TableRow):
    """A Request that runs under both Models, or two that run under one each, and what became of them."""

    __tablename__ = "experiment_lines"
    __table_args__ = (
        Index("experiment_lines_open_index", "experiment_id", postgresql_where=text("NOT is_judged")),
    )

    experiment_id: Mapped[str] = mapped_column(
        ForeignKey("experiments.id", ondelete="CASCADE"), primary_key=True
    )
    position: Mapped[int] = mapped_column(primary_key=True)  # in the Batch
    shadow_position: Mapped[int]  # in the Batch of the other Model; without one, in the Batch
    is_judged: Mapped[bool] = mapped_column(server_default=false())  # both have a Result that says something
    agrees: Mapped[bool | None]  # None: not judged, or two Requests
    right_a: Mapped[bool | None]  # None: nothing says what is right
    right_b: Mapped[bool | None]
    failed_a: Mapped[bool | None]
    failed_b: Mapped[bool | None]
    valid_a: Mapped[bool | None]  # whole, and in the format that was asked for; None: in none
    valid_b: Mapped[bool | None]
    tokens_a: Mapped[int | None]  # of output; None: one of the two was not computed for it
    tokens_b: Mapped[int | None]
    seconds_a: Mapped[float | None]  # device seconds
    seconds_b: Mapped[float | None]
    cost_a: Mapped[int | None]  # billionths of the currency
    cost_b: Mapped[int | None]
