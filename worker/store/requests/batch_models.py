"""Counts what each model has to do, and has done, of a batch whose requests name several models.

Such a batch is mixed. Each of its shards is of one model. The batch's own model is one of them. The caller
holds the batch's lock, or has just inserted it.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from sqlalchemy import ColumnElement, and_, case, func, or_, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import InstrumentedAttribute, Session, aliased

from worker.contract.models import Model
from worker.store.requests.models import of_batch
from worker.store.requests.requests import NewRequest
from worker.store.rows.batches import BatchModelRow, BatchRow
from worker.values.sampling import SamplingParams

# Of requests that are added.
ADDED = ("num_requests", "num_prompt_tokens", "max_output_tokens")
# Made once: each takes longer than a query. The first is of `is_of`, the second of `Picked`.
_PART, _PICKED = aliased(BatchModelRow, name="part"), aliased(BatchModelRow, name="picked")


def of_requests(requests: Iterable[NewRequest], own: Model | None) -> list[Model]:
    """Return the different models of a batch's requests, in their order; `own` is that of the batch."""
    found = (request.model or own for request in requests if request.error is None)
    return list(dict.fromkeys(model for model in found if model is not None))


def chosen(requests: Iterable[NewRequest], default: Model) -> Model:
    """Return the model of a batch with these requests: the default, unless no request is for that."""
    models = of_requests(requests, default)
    return default if default in models or not models else models[0]


def by_model(requests: Sequence[NewRequest], own: Model | None) -> dict[Model | None, list[NewRequest]]:
    """Return a batch's requests by model; the wrong ones are among those of the batch's own."""
    found: dict[Model | None, list[NewRequest]] = defaultdict(list)
    for request in requests:
        found[request.model or own].append(request)
    return found


def fingerprint_of(request: NewRequest, own: str | None) -> str:
    """Return the fingerprint by which a request's shard waits for its model; empty: for any."""
    return (own or "") if request.model is None else request.model.fingerprint


def other_model(request: NewRequest, own: str | None) -> str:
    """Return the fingerprint of a request's model if that is not the batch's own; else an empty one."""
    return "" if request.model is None or request.model.fingerprint == own else request.model.fingerprint


def name(session: Session, batch_id: str, models: Iterable[Model]) -> None:
    """Store the models of a mixed batch, with no request yet."""
    for model in models:
        count(session, batch_id, model, dict.fromkeys(ADDED, 0))


def add(
    session: Session,
    batch_id: str,
    requests: Sequence[NewRequest],
    *,
    own: Model,
    batch_params: SamplingParams,
) -> None:
    """Add new requests of a mixed batch to the counts of their models."""
    for model, its in by_model(requests, own).items():
        counts = {
            "num_requests": len(its),
            "num_prompt_tokens": sum(request.num_prompt_tokens for request in its),
            "max_output_tokens": sum(request.max_output_tokens(batch_params) for request in its),
        }
        count(session, batch_id, model or own, counts)


def count_read(
    session: Session, batch: BatchRow, requests: Sequence[NewRequest], batch_params: SamplingParams
) -> None:
    """Count lines of a batch's file that have become requests."""
    batch.num_unread -= len(requests)
    batch.num_prompt_tokens += sum(request.num_prompt_tokens for request in requests)
    batch.max_output_tokens += sum(request.max_output_tokens(batch_params) for request in requests)
    own = of_batch(batch)
    if batch.is_mixed and own is not None:
        add(session, batch.id, requests, own=own, batch_params=batch_params)


def add_results(session: Session, batch_id: str, fingerprint: str, added: Mapping[str, Any]) -> None:
    """Add what new results sum up to to the counts of the model that had to run them."""
    row = session.get(BatchModelRow, (batch_id, fingerprint), populate_existing=True)
    if row is None:  # a request that no model was found for
        return
    for column, value in added.items():
        if column not in ADDED and column in BatchModelRow.__mapper__.column_attrs:
            setattr(row, column, getattr(row, column) + value)
    session.flush()


def rows(session: Session, batch_ids: Sequence[str]) -> dict[str, list[BatchModelRow]]:
    """Return what is counted by model of mixed batches, by batch; the most requests first."""
    found: dict[str, list[BatchModelRow]] = {}
    order = (BatchModelRow.batch_id, BatchModelRow.num_requests.desc(), BatchModelRow.model_fingerprint)
    those = select(BatchModelRow).where(BatchModelRow.batch_id.in_(batch_ids)).order_by(*order)
    for row in session.scalars(those.execution_options(populate_existing=True)):
        found.setdefault(row.batch_id, []).append(row)
    return found


def tokenizers(session: Session, batch: BatchRow) -> set[str | None]:
    """Return the tokenizers that counted the prompts of a batch."""
    if not batch.is_mixed:
        return {batch.model_tokenizer}
    return {row.model_tokenizer for row in rows(session, [batch.id])[batch.id]}


@cache
def is_of(model: str, *, has_work: bool = False) -> ColumnElement[bool]:
    """Return the SQL condition of batches that this model runs, or part of which it does.

    These include batches that any model may run. `has_work` leaves out mixed batches without work for it.
    """
    those = [_PART.batch_id == BatchRow.id, _PART.model_fingerprint == model]
    if has_work:
        those.append(num_left(_PART) > 0)
    own = or_(BatchRow.model_fingerprint == model, BatchRow.model_fingerprint.is_(None))
    return case((BatchRow.is_mixed, select(_PART.batch_id).where(*those).exists()), else_=own)


class Picked:
    """SQL expressions of a batch's counts: of a mixed one, those of a model's part; None: of the whole.

    Outer join `part` by `joined`.
    """

    def __init__(self, model: str | None) -> None:
        self.part = _PICKED
        self.joined = and_(self.part.batch_id == BatchRow.id, self.part.model_fingerprint == (model or ""))

    def __getitem__(self, column: InstrumentedAttribute[int]) -> ColumnElement[int]:
        """Return the expression of a count."""
        return func.coalesce(getattr(self.part, column.key), column)

    @property
    def num_left(self) -> ColumnElement[int]:
        """The number of requests without a result."""
        return func.coalesce(num_left(self.part), num_left(BatchRow))


def num_left(row: Any) -> ColumnElement[int]:
    """Return the number of requests without a result, in SQL, of a batch or of one of its models."""
    left: ColumnElement[int] = row.num_requests - row.num_completed - row.num_failed - row.num_cancelled
    return left


def give_all_to(session: Session, batch_id: str, model: Model, *, more_output_tokens: int) -> None:
    """Count the requests of a mixed batch that have no result as this model's."""
    moved = dict.fromkeys(ADDED, 0) | {"max_output_tokens": more_output_tokens}
    for row in rows(session, [batch_id]).get(batch_id, ()):
        if row.model_fingerprint == model.fingerprint:
            continue
        left = {
            "num_requests": row.num_requests - row.num_settled,
            "num_prompt_tokens": max(0, row.num_prompt_tokens - row.input_tokens),
            "max_output_tokens": max(0, row.max_output_tokens - row.settled_max_tokens),
        }
        for column, value in left.items():
            setattr(row, column, getattr(row, column) - value)
            moved[column] += value
    session.flush()
    count(session, batch_id, model, moved)


def model_of(row: BatchModelRow) -> Model:
    """Return the model of a row."""
    return Model(row.model_name, row.model_fingerprint, row.model_tokenizer)


def count(session: Session, batch_id: str, model: Model, given: Mapping[str, int]) -> None:
    """Add to the counts of requests that a model has to run, those of `ADDED`."""
    counts = {column: given[column] for column in ADDED}
    named = {
        "batch_id": batch_id,
        "model_fingerprint": model.fingerprint,
        "model_name": model.name,
        "model_tokenizer": model.tokenizer,
    }
    key = [BatchModelRow.batch_id, BatchModelRow.model_fingerprint]
    more = {column: getattr(BatchModelRow, column) + value for column, value in counts.items()}
    statement = insert(BatchModelRow).values(named | counts)
    session.execute(statement.on_conflict_do_update(index_elements=key, set_=more))
