"""Check tenants' quotas, in the transaction that would add to what a tenant has."""

from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from worker.contract.states import LIVE_STATUSES, UploadStatus
from worker.store.database.session import tenant_of
from worker.store.rows.access import TenantRow
from worker.store.rows.batches import BatchRow
from worker.store.rows.files import FileRow, UploadRow

# The noun for each limit of a tenant, in words for the client.
NOUNS = {
    "max_batches": "batches that have not ended",
    "max_requests": "requests without a result",
    "max_tokens": "queued tokens (prompts, and outputs at their longest)",
    "max_bytes": "bytes of stored prompts and outputs",
    "max_file_bytes": "bytes of files",
}
OF_BATCHES = ("max_batches", "max_requests", "max_tokens", "max_bytes")


@dataclass(frozen=True, slots=True)
class Demand:
    """Amounts that a new batch adds to its tenant's."""

    requests: int
    tokens: int
    num_bytes: int


class QuotaExceededError(Exception):
    """A demand would take its tenant over a limit. `can_wait`: it is within the limit, so room may come."""

    def __init__(self, quota: str, *, limit: int, used: int, asked: int) -> None:
        super().__init__(
            f"The tenant may have at most {limit} {NOUNS[quota]}. It has {used}, and this would add {asked}."
        )
        self.quota = quota
        self.can_wait = asked <= limit


def check(session: Session, demand: Demand) -> None:
    """Check that a batch fits its tenant's quotas; lock the tenant's row until the transaction ends.

    The lock keeps two batches from taking the same room.

    Raises:
        QuotaExceededError: the batch does not fit.

    """
    tenant_id = tenant_of(session)
    tenant = session.get(TenantRow, tenant_id)
    if tenant is None or not any(getattr(tenant, quota) is not None for quota in OF_BATCHES):
        return
    session.refresh(tenant, with_for_update=True)
    used = _queued(session, tenant_id)
    if tenant.max_bytes is not None:
        used["max_bytes"] = _stored_bytes(session, tenant_id)
    asked = {
        "max_batches": 1,
        "max_requests": demand.requests,
        "max_tokens": demand.tokens,
        "max_bytes": demand.num_bytes,
    }
    for quota, amount in asked.items():
        limit = getattr(tenant, quota)
        if limit is not None and used[quota] + amount > limit:
            raise QuotaExceededError(quota, limit=limit, used=used[quota], asked=amount)


def check_files(session: Session, num_bytes: int) -> None:
    """Check that a file or an upload of so many bytes fits its tenant's quota, as `check` does for a batch.

    Files that batches write count too, and are never refused: their results were promised.
    """
    tenant_id = tenant_of(session)
    tenant = session.get(TenantRow, tenant_id)
    if tenant is None or tenant.max_file_bytes is None or num_bytes <= 0:
        return
    session.refresh(tenant, with_for_update=True)
    limit = tenant.max_file_bytes
    in_files = select(func.coalesce(func.sum(FileRow.num_bytes), 0)).where(FileRow.tenant_id == tenant_id)
    in_uploads = select(func.coalesce(func.sum(UploadRow.num_bytes), 0)).where(
        UploadRow.tenant_id == tenant_id, UploadRow.status == UploadStatus.PENDING
    )
    used = int(session.scalar(in_files) or 0) + int(session.scalar(in_uploads) or 0)
    if used + num_bytes > limit:
        raise QuotaExceededError("max_file_bytes", limit=limit, used=used, asked=num_bytes)


def _queued(session: Session, tenant_id: str) -> dict[str, int]:
    settled = BatchRow.num_completed + BatchRow.num_failed + BatchRow.num_cancelled
    # Tokens of settled requests go out in proportion: exact sums would need every request.
    tokens = (
        BatchRow.num_prompt_tokens
        * (BatchRow.num_requests - settled)
        / func.greatest(BatchRow.num_requests, 1)
        + BatchRow.max_output_tokens
        - BatchRow.settled_max_tokens
    )
    found = session.execute(
        select(func.count(), func.sum(BatchRow.num_requests - settled), func.sum(tokens)).where(
            BatchRow.tenant_id == tenant_id, BatchRow.status.in_(LIVE_STATUSES)
        )
    ).one()
    return dict(zip(("max_batches", "max_requests", "max_tokens"), (int(n or 0) for n in found), strict=True))


def _stored_bytes(session: Session, tenant_id: str) -> int:
    total = select(func.coalesce(func.sum(BatchRow.stored_bytes), 0))
    return int(session.scalar(total.where(BatchRow.tenant_id == tenant_id)) or 0)
