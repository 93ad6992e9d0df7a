"""Reassigns an unfinished batch to another model than the one it was accepted for.

Existing results stay, and each names the model that made it. Requests that the old model had begun start
again from their prompts.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from sqlalchemy import ColumnElement, and_, bindparam, case, cast, delete, exists, func, or_, select, update
from sqlalchemy.dialects.postgresql import JSONPATH
from sqlalchemy.orm import Session

from worker.contract.models import Model, label
from worker.contract.states import AttemptCause, Lane, ShardState
from worker.store.batches import batches, journal
from worker.store.database.notify import wake_dispatcher, wake_files, wake_interactive, wake_workers
from worker.store.requests import attempts, batch_models
from worker.store.requests.requests import NewRequest
from worker.store.rows.batches import BatchRow
from worker.store.rows.requests import PartialOutputRow, RequestRow, ResultRow
from worker.store.rows.shards import ShardRow
from worker.store.shards.shards import NOBODYS
from worker.values.requests import params_from_json, to_prompts
from worker.values.sampling import SamplingParams

LIVE = (ShardState.READY, ShardState.RUNNING)
# Parameters that contain token ids.
OF_TOKENS = ("logit_bias", "stop_token_ids")


@dataclass(frozen=True, slots=True)
class Bound:
    """A locked batch and the model that it waits for."""

    tenant_id: str
    is_over: bool  # it has ended, or is about to
    is_unread: bool  # lines of its file are not requests yet
    label: str | None
    tokenizers: Collection[str | None]  # that counted its prompts; None: unknown
    is_mixed: bool  # its requests name several models


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A request without a result, as the customer submitted it."""

    id: int
    position: int
    request: NewRequest
    max_tokens: int  # of one choice, under the old model


@dataclass(frozen=True, slots=True)
class Fitted:
    """Token counts of a request under another model's tokenizer and context."""

    id: int
    num_prompt_tokens: int
    max_tokens: int


def lock(session: Session, batch_id: str) -> Bound | None:
    """Lock a batch until the transaction ends; return its model and state, or None for no such batch."""
    batch = batches.lock(session, batch_id)
    if batch is None:
        return None
    name, fingerprint = batch.model_name, batch.model_fingerprint
    return Bound(
        tenant_id=batch.tenant_id,
        is_over=batches.is_stopping(session, batch),
        is_unread=batch.num_unread > 0,
        label=None if name is None or fingerprint is None else label(name, fingerprint),
        tokenizers=batch_models.tokenizers(session, batch),
        is_mixed=batch.is_mixed,
    )


def bound_to_tokens(session: Session, batch_id: str) -> str | None:
    """Return a phrase for what ties the unfinished requests of a batch to its tokenizer, or None."""
    has_ids = RequestRow.inputs.op("@?")(cast('$[*] ? (@.type() == "array")', JSONPATH))
    names_tokens = or_(*(RequestRow.params.has_key(name) for name in OF_TOKENS))
    reasons = {
        "conversations, which the old model's chat template has written": ~RequestRow.add_special_tokens,
        "prompts of token ids": has_ids,
        "parameters that name token ids": names_tokens,
    }
    if any(name in session.get_one(BatchRow, batch_id).params for name in OF_TOKENS):
        return "parameters that name token ids"
    for reason, condition in reasons.items():
        if session.scalar(select(exists().where(_is_unfinished(batch_id), condition))):
            return reason
    return None


def longest(session: Session, batch_id: str) -> int:
    """Return the most tokens, prompt and output together, that any unfinished request of a batch can have."""
    most = func.max(RequestRow.num_prompt_tokens + RequestRow.max_tokens)
    return session.scalar(select(most).where(_is_unfinished(batch_id))) or 0


def counted(session: Session, batch_id: str, *, after: int, limit: int) -> list[Unfinished]:
    """Return at most `limit` unfinished requests with counted tokens after position `after`, in order."""
    rows = session.scalars(
        select(RequestRow)
        .where(_is_unfinished(batch_id), RequestRow.num_prompt_tokens > 0, RequestRow.position > after)
        .order_by(RequestRow.position)
        .limit(limit)
    )
    shared = SamplingParams.from_json(session.get_one(BatchRow, batch_id).params)
    found = []
    for row in rows:
        params = shared if row.params is None else params_from_json(row.kind, row.params)
        if isinstance(params, SamplingParams):
            params = replace(params, must_fit=False)  # a reassigned request takes the context that is left
        request = NewRequest(
            prompt=row.prompt,
            inputs=None if row.inputs is None else to_prompts(row.inputs),
            params=params,
            max_tokens=params.max_tokens if isinstance(params, SamplingParams) else row.max_tokens,
            add_special_tokens=row.add_special_tokens,
        )
        found.append(Unfinished(row.id, row.position, request, row.max_tokens))
    return found


def fit(session: Session, fitted: Sequence[Fitted]) -> None:
    """Store the token counts of requests under another tokenizer.

    A request whose `max_tokens` changes loses its digest, as the digest covers the old limit; so it runs by
    itself.
    """
    if fitted:
        session.connection().execute(
            update(RequestRow)
            .where(RequestRow.id == bindparam("request"))
            .values(
                num_prompt_tokens=bindparam("count"),
                max_tokens=bindparam("most"),
                digest=case((RequestRow.max_tokens == bindparam("most"), RequestRow.digest)),
            ),
            [{"request": one.id, "count": one.num_prompt_tokens, "most": one.max_tokens} for one in fitted],
        )


def cut_uncounted(session: Session, batch_id: str, *, most: int) -> None:
    """Limit outputs to `most` tokens in requests whose tokens are not counted, such as those of a file."""
    is_over = (RequestRow.num_prompt_tokens == 0, RequestRow.max_tokens > most)
    session.execute(
        update(RequestRow)
        .where(_is_unfinished(batch_id), *is_over)
        .values(max_tokens=most, digest=None)
        .execution_options(synchronize_session=False)
    )


def rebind(session: Session, batch_id: str, model: Model, *, more_output_tokens: int = 0) -> None:
    """Bind a locked batch to another model; workers that run its shards lose them."""
    batch = session.get_one(BatchRow, batch_id)
    journal.changed(session, "batch reassigned", batch, model=model.label)
    batch.max_output_tokens += more_output_tokens
    batch.model_name, batch.model_fingerprint = model.name, model.fingerprint
    batch.model_tokenizer = model.tokenizer
    if batch.is_mixed:
        batch_models.give_all_to(session, batch.id, model, more_output_tokens=more_output_tokens)
    others = [ShardRow.model_fingerprint != model.fingerprint] if batch.is_mixed else []
    ids = _rebind_shards(session, batch, model.fingerprint, *others)
    prompt_tokens = select(func.coalesce(func.sum(RequestRow.num_prompt_tokens), 0))
    batch.num_prompt_tokens = int(session.scalar(prompt_tokens.where(RequestRow.batch_id == batch.id)) or 0)
    wake_workers(session, batch.id)
    if batch.lane is Lane.INTERACTIVE:
        wake_interactive(session, sorted(ids))
    wake_dispatcher(session)
    wake_files(session)


def give_back(session: Session, batch: BatchRow) -> None:
    """Bind the shards of a locked batch that wait for another model than its own to its own.

    Workers that run such a shard lose it, and its requests without a result start again from their prompts.
    """
    own = batch.model_fingerprint or ""
    ids = _rebind_shards(session, batch, own, ShardRow.model_fingerprint != own)
    if ids:
        journal.of_shards(session, "shards given back", batch, *sorted(ids))
        wake_workers(session, batch.id)
        wake_dispatcher(session)


def _rebind_shards(
    session: Session, batch: BatchRow, fingerprint: str, *conditions: ColumnElement[bool]
) -> Sequence[int]:
    """Bind the unfinished shards of a locked batch that meet the conditions to a model; return their ids."""
    of_batch = (ShardRow.batch_id == batch.id, ShardRow.state.in_(LIVE), *conditions)
    live = session.execute(
        select(ShardRow.id, ShardRow.state).where(*of_batch).order_by(ShardRow.id).with_for_update()
    )
    for shard_id, state in live.all():
        if state is ShardState.RUNNING:
            attempts.record(session, shard_id, AttemptCause.HANDED_BACK)
    ids = session.scalars(
        update(ShardRow)
        .where(*of_batch)
        .values(
            model_fingerprint=fingerprint,
            state=ShardState.READY,
            # A shard that was never claimed keeps its fence of 0, by which extra slots know it as not begun.
            fence=case((ShardRow.fence > 0, ShardRow.fence + 1), else_=0),
            attempts=0,
            running_tokens=0,
            **NOBODYS,
        )
        .returning(ShardRow.id)
        .execution_options(synchronize_session=False)
    ).all()
    begun = select(RequestRow.id).where(RequestRow.batch_id == batch.id, RequestRow.shard_id.in_(ids))
    session.execute(delete(PartialOutputRow).where(PartialOutputRow.request_id.in_(begun)))
    return ids


def _is_unfinished(batch_id: str) -> ColumnElement[bool]:
    has_result = exists().where(ResultRow.request_id == RequestRow.id)
    return and_(RequestRow.batch_id == batch_id, ~has_result)
