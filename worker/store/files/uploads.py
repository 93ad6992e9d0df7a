"""Store uploads: files that arrive in parts, until completed, cancelled or expired."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import uuid4

from sqlalchemy import delete, func, insert, select, update
from sqlalchemy.orm import Session

from worker.contract.states import UploadStatus
from worker.store.database.session import tenant_of
from worker.store.rows.files import UploadPartRow, UploadRow
from worker.store.rows.views import view_of

LIFETIME = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class NewUpload:
    """An upload to be added."""

    purpose: str
    filename: str
    num_bytes: int
    file_lifetime_seconds: int | None


@dataclass(frozen=True, slots=True)
class UploadView:
    """Current state of an upload."""

    id: str
    status: UploadStatus
    purpose: str
    filename: str
    num_bytes: int
    file_lifetime_seconds: int | None
    file_id: str | None
    created_at: datetime
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class PartView:
    """A part of an upload; its bytes are a blob."""

    id: str
    upload_id: str
    sha256: str
    num_bytes: int
    created_at: datetime


def add(session: Session, new: NewUpload) -> UploadView:
    """Insert a new upload."""
    row = session.execute(
        insert(UploadRow)
        .values(
            id=f"upload_{uuid4().hex}",
            tenant_id=tenant_of(session),
            status=UploadStatus.PENDING,
            purpose=new.purpose,
            filename=new.filename,
            num_bytes=new.num_bytes,
            file_lifetime_seconds=new.file_lifetime_seconds,
            expires_at=func.now() + LIFETIME,
        )
        .returning(UploadRow)
    ).scalar_one()
    return view_of(UploadView, row)


def get(session: Session, upload_id: str, *, lock: bool = False) -> UploadView | None:
    """Return an upload, or None. `lock` keeps others from changing it until the transaction ends."""
    query = select(UploadRow).where(UploadRow.id == upload_id)
    row = session.scalar(query.with_for_update() if lock else query)
    return None if row is None else view_of(UploadView, row)


def add_part(session: Session, upload_id: str, *, sha256: str, num_bytes: int) -> PartView:
    """Insert a part. The caller holds the upload's lock, and the blob's."""
    row = session.execute(
        insert(UploadPartRow)
        .values(id=f"part_{uuid4().hex}", upload_id=upload_id, sha256=sha256, num_bytes=num_bytes)
        .returning(UploadPartRow)
    ).scalar_one()
    return view_of(PartView, row)


def num_part_bytes(session: Session, upload_id: str) -> int:
    """Return how many bytes of an upload have arrived."""
    total = select(func.coalesce(func.sum(UploadPartRow.num_bytes), 0))
    return int(session.scalar(total.where(UploadPartRow.upload_id == upload_id)) or 0)


def parts(session: Session, upload_id: str) -> dict[str, PartView]:
    """Return an upload's parts by id."""
    rows: Sequence[UploadPartRow] = session.scalars(
        select(UploadPartRow).where(UploadPartRow.upload_id == upload_id)
    ).all()
    return {row.id: view_of(PartView, row) for row in rows}


def end(session: Session, upload_id: str, status: UploadStatus, file_id: str | None = None) -> None:
    """Move a locked pending upload to a terminal status, and delete the rows of its parts."""
    session.execute(update(UploadRow).where(UploadRow.id == upload_id).values(status=status, file_id=file_id))
    session.execute(delete(UploadPartRow).where(UploadPartRow.upload_id == upload_id))


def expire(session: Session, *, limit: int) -> None:
    """End at most `limit` uploads that were not completed in time."""
    late = session.scalars(
        select(UploadRow.id)
        .where(UploadRow.status == UploadStatus.PENDING, UploadRow.expires_at <= func.now())
        .limit(limit)
        .with_for_update(skip_locked=True)
    ).all()
    for upload_id in late:
        end(session, upload_id, UploadStatus.EXPIRED)
