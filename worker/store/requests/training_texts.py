"""Reads prompts with their outputs as texts to train on, of tenants that allow it."""

from collections.abc import Sequence

from sqlalchemy import cast, func, select
from sqlalchemy.dialects.postgresql import JSONPATH
from sqlalchemy.orm import Session

from worker.store.rows.access import TenantRow
from worker.store.rows.batches import BatchRow
from worker.store.rows.requests import RequestRow, ResultRow
from worker.values.outcomes import Outcome
from worker.values.requests import RequestKind


class TrainingError(Exception):
    """Texts of these batches may not be trained on, or not together."""


def owner(session: Session, batch_ids: Sequence[str]) -> str:
    """Return the tenant that these batches belong to.

    Raises:
        TrainingError: there is no such batch, they are of several tenants, or theirs does not allow training.

    """
    query = (
        select(BatchRow.id, TenantRow.id, TenantRow.allows_reuse)
        .join(TenantRow, TenantRow.id == BatchRow.tenant_id)
        .where(BatchRow.id.in_(batch_ids))
    )
    found = {batch_id: (tenant, allows) for batch_id, tenant, allows in session.execute(query)}
    for batch_id in batch_ids:
        if batch_id not in found:
            raise TrainingError(f"There is no batch {batch_id}.")
    tenants = sorted({tenant for tenant, _ in found.values()})
    if len(tenants) > 1:
        raise TrainingError(f"The batches belong to several tenants: {', '.join(tenants)}.")
    if not all(allows for _, allows in found.values()):
        raise TrainingError(f"The tenant {tenants[0]} does not allow training on its prompts and outputs.")
    return tenants[0]


def page(session: Session, batch_id: str, *, after: int, limit: int) -> list[tuple[int, list[str]]]:
    """Return the next completed generations of a batch: each one's position, and a text for each choice.

    A text is the prompt as the model saw it, then the output. Left out are prompts that were given as token
    ids, several prompts in one request, and tool loops. It is empty if the tenant does not allow training.
    """
    choices = func.jsonb_path_query_array(ResultRow.payload, cast("$.choices[*].text", JSONPATH))
    rows = session.execute(
        select(RequestRow.position, RequestRow.prompt, ResultRow.output, choices)
        .join(ResultRow, ResultRow.request_id == RequestRow.id)
        .join(BatchRow, BatchRow.id == RequestRow.batch_id)
        .join(TenantRow, TenantRow.id == BatchRow.tenant_id)
        .where(
            TenantRow.allows_reuse,
            RequestRow.batch_id == batch_id,
            RequestRow.position > after,
            RequestRow.kind == RequestKind.GENERATION,
            RequestRow.inputs.is_(None),
            RequestRow.tool_loop.is_(None),
            ResultRow.outcome == Outcome.COMPLETED,
            ResultRow.sequence.is_not(None),
        )
        .order_by(RequestRow.position)
        .limit(limit)
    )
    return [
        (position, [prompt + one for one in (several or [output or ""])])
        for position, prompt, output, several in rows
    ]
