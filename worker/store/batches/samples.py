"""Draws a sample of the requests that a tenant has stored, if the tenant allows that they are used again."""

import json

from sqlalchemy import Text, cast, func, select
from sqlalchemy.orm import Session

from worker.quality.expected import Expected
from worker.store.database.session import tenant_of
from worker.store.requests.requests import NewRequest
from worker.store.rows.batches import BatchRow
from worker.store.rows.requests import RequestRow
from worker.store.tenants import tenants
from worker.values.requests import RequestKind, to_prompts
from worker.values.sampling import SamplingParams

NEWEST = 20_000  # requests that a sample is drawn from


class ReuseNotAllowedError(Exception):
    """The tenant does not allow its stored requests to be used again, or there is no such tenant."""


def draw(session: Session, *, tokenizer: str, most: int) -> list[NewRequest]:
    """Return at most `most` of the newest generations of the session's tenant, whatever became of them.

    Only prompts of models with this tokenizer (`worker.contract.models.Model`) are taken, as others have
    another chat template. The same rows give the same sample.

    Raises:
        ReuseNotAllowedError: the tenant has not allowed it.

    """
    if not tenants.allows_reuse(session):
        raise ReuseNotAllowedError
    newest = (
        select(RequestRow.id)
        .join(BatchRow, BatchRow.id == RequestRow.batch_id)
        .where(
            BatchRow.tenant_id == tenant_of(session),
            BatchRow.model_tokenizer == tokenizer,
            RequestRow.kind == RequestKind.GENERATION,
            RequestRow.tool_loop.is_(None),  # a trial makes no calls
            ~RequestRow.is_wrong_line,
            func.coalesce(func.jsonb_array_length(RequestRow.inputs), 1) == 1,
        )
        .order_by(BatchRow.created_at.desc(), RequestRow.id.desc())
        .limit(NEWEST)
        .subquery()
    )
    rows = session.execute(
        select(RequestRow, BatchRow.params)
        .join(newest, newest.c.id == RequestRow.id)
        .join(BatchRow, BatchRow.id == RequestRow.batch_id)
        .order_by(func.md5(cast(RequestRow.id, Text)))
        .limit(most)
    )
    return [_to_new(row, params) for row, params in rows]


def _to_new(row: RequestRow, batch_params: dict[str, object]) -> NewRequest:
    return NewRequest(
        prompt=row.prompt,
        max_tokens=row.max_tokens,
        params=SamplingParams.from_json(row.params or batch_params),
        add_special_tokens=row.add_special_tokens,
        inputs=None if row.inputs is None else to_prompts(row.inputs),
        expected=None if row.expected is None else Expected.from_json(json.loads(row.expected)),
    )
