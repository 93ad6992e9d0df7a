"""Selects the shards that a worker's model may run, and stores the models that made results."""

from collections.abc import Collection
from dataclasses import dataclass, replace

from sqlalchemy import ColumnElement, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from worker.contract.models import Model, ServedModel
from worker.store.rows.batches import BatchRow
from worker.store.rows.models import ServedModelRow
from worker.store.rows.shards import ShardRow
from worker.store.rows.views import view_of


@dataclass(frozen=True, slots=True)
class ServedModelView:
    """The model that made a result, as a client reads it."""

    name: str
    fingerprint: str
    weight_format: str
    dtype: str


def columns_of(model: Model | None) -> dict[str, str]:
    """Return the columns by which a batch's row names its model."""
    if model is None:
        return {}
    return {
        "model_name": model.name,
        "model_fingerprint": model.fingerprint,
        "model_tokenizer": model.tokenizer,
    }


def of_batch(batch: BatchRow) -> Model | None:
    """Return a batch's own model; None: any."""
    if batch.model_name is None or batch.model_fingerprint is None:
        return None
    return Model(batch.model_name, batch.model_fingerprint, batch.model_tokenizer or "")


def may_run(fingerprint: str | None) -> ColumnElement[bool]:
    """Return the SQL condition of the shards that a worker with this model fingerprint may run.

    These are its model's shards, and those of batches that were accepted before models were recorded.
    """
    return ShardRow.model_fingerprint.in_({"", fingerprint or ""})


def register(session: Session, served: ServedModel) -> ServedModel:
    """Store a served model, unless it is stored; return it with the id by which results name it."""
    values = {
        "name": served.model.name,
        "fingerprint": served.fingerprint,
        "weight_format": served.weight_format,
        "dtype": served.dtype,
    }
    found = select(ServedModelRow.id).filter_by(**values)
    model_id = session.scalar(found)
    if model_id is None:
        session.execute(insert(ServedModelRow).values(values).on_conflict_do_nothing())
        model_id = session.scalars(found).one()
    return replace(served, id=model_id)


def of_results(session: Session, ids: Collection[int | None]) -> dict[int, ServedModelView]:
    """Return served models by the ids that results name."""
    rows = session.scalars(select(ServedModelRow).where(ServedModelRow.id.in_({one for one in ids if one})))
    return {row.id: view_of(ServedModelView, row) for row in rows}
