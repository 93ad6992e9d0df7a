"""Store files as rows: add, list, delete. Must not know disks: the bytes are in Blobs."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal
from uuid import uuid4

from sqlalchemy import ColumnElement, delete, func, insert, or_, select, text
from sqlalchemy.orm import Session

from worker.contract.states import FilesStage
from worker.store.database import cursors
from worker.store.database.session import tenant_of
from worker.store.rows.batches import BatchRow
from worker.store.rows.files import BatchFilesRow, FileRow, UploadPartRow
from worker.store.rows.views import view_of

BATCH_INPUT = "batch"
BATCH_OUTPUT = "batch_output"
# A blob that no row names is dropped at this age, not before: a row that names it may be about to come.
ORPHAN_AFTER = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class NewFile:
    """A file to be added; its blob exists already."""

    purpose: str
    filename: str
    sha256: str
    num_bytes: int
    num_lines: int | None = None
    endpoint: str | None = None
    num_wrong_lines: int | None = None
    model: str | None = None
    lifetime: timedelta | None = None


@dataclass(frozen=True, slots=True)
class FileView:
    """Current state of a file."""

    id: str
    purpose: str
    filename: str
    sha256: str
    num_bytes: int
    num_lines: int | None
    endpoint: str | None
    num_wrong_lines: int | None  # None: no line may be wrong
    model: str | None
    created_at: datetime
    expires_at: datetime | None


def add(session: Session, new: NewFile) -> FileView:
    """Insert a file's row. The caller holds `lock_blob` and has seen the blob."""
    row = session.execute(
        insert(FileRow)
        .values(
            id=f"file-{uuid4().hex}",
            tenant_id=tenant_of(session),
            purpose=new.purpose,
            filename=new.filename,
            sha256=new.sha256,
            num_bytes=new.num_bytes,
            num_lines=new.num_lines,
            endpoint=new.endpoint,
            num_wrong_lines=new.num_wrong_lines,
            model=new.model,
            expires_at=None if new.lifetime is None else func.now() + new.lifetime,
        )
        .returning(FileRow)
    ).scalar_one()
    return view_of(FileView, row)


def get(session: Session, file_id: str) -> FileView | None:
    """Return a file; None: there is none, or it has expired."""
    row = session.scalar(select(FileRow).where(FileRow.id == file_id, _is_live()))
    return None if row is None else view_of(FileView, row)


def page(
    session: Session, *, purpose: str | None, after: str | None, limit: int, order: Literal["asc", "desc"]
) -> Sequence[FileView]:
    """Return the files after the file `after`, by creation time; raises UnknownCursorError."""
    query = select(FileRow).where(_is_live())
    if purpose is not None:
        query = query.where(FileRow.purpose == purpose)
    by = (FileRow.created_at, FileRow.id)
    query = cursors.follow(session, query, by, after=after, limit=limit, is_newest_first=order == "desc")
    return [view_of(FileView, row) for row in session.scalars(query)]


def remove(session: Session, file_id: str) -> bool:
    """Delete a file's row; return False if there is none. A blob that no row names is dropped later."""
    return session.scalar(delete(FileRow).where(FileRow.id == file_id).returning(FileRow.id)) is not None


def is_being_read(session: Session, file_id: str) -> bool:
    """Return whether a batch still reads its requests from this file."""
    query = (
        select(BatchRow.id)
        .join(BatchFilesRow, BatchFilesRow.batch_id == BatchRow.id)
        .where(BatchFilesRow.input_file_id == file_id, BatchFilesRow.stage == FilesStage.READING)
    )
    return bool(session.scalar(select(query.exists())))


def remove_expired(session: Session) -> None:
    """Delete the rows of expired files."""
    session.execute(delete(FileRow).where(FileRow.expires_at <= func.now()))


def lock_blob(session: Session, sha256: str) -> None:
    """Prevent others from naming or dropping a blob until the transaction ends."""
    # The caller may copy the blob's bytes meanwhile, perhaps into a bucket.
    session.execute(text("SET LOCAL idle_in_transaction_session_timeout = '10min'"))
    session.execute(select(func.pg_advisory_xact_lock(func.hashtextextended(sha256, 0))))


def named_blobs(session: Session, sha256s: Sequence[str]) -> set[str]:
    """Return those of these digests that a file or a part of an upload names."""
    in_files = select(FileRow.sha256).where(FileRow.sha256.in_(sha256s))
    in_parts = select(UploadPartRow.sha256).where(UploadPartRow.sha256.in_(sha256s))
    return set(session.scalars(in_files.union(in_parts)))


def orphan_horizon(session: Session) -> datetime:
    """Return the time before which an unnamed blob must have been stored to be dropped."""
    return session.scalars(select(func.now() - ORPHAN_AFTER)).one()


def _is_live() -> ColumnElement[bool]:
    return or_(FileRow.expires_at.is_(None), FileRow.expires_at > func.now())
