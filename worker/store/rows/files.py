"""Tables of files, of uploads and their parts, and of the files that a Batch reads and writes."""

from datetime import datetime
from typing import Any

from sqlalchemy import ForeignKey, Index, func, text
from sqlalchemy.orm import Mapped, mapped_column

from worker.contract.states import FilesStage, UploadStatus
from worker.store.rows.table import Copier, Owned, TableRow, copied_by, created_now, is_in, one_of

ASKED_FOR = copied_by(Copier.RETRY)  # by the customer


class FileRow(Owned, TableRow):
    """A file as a client knows it; its bytes are a Blob."""

    __tablename__ = "files"
    __table_args__ = (
        Index(None, "tenant_id", "created_at", "id"),
        Index(None, "sha256"),
        Index("files_expiring_index", "expires_at", postgresql_where=text("expires_at IS NOT NULL")),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    purpose: Mapped[str]
    filename: Mapped[str]
    sha256: Mapped[str]
    num_bytes: Mapped[int]
    num_lines: Mapped[int | None]  # for the input of a batch
    endpoint: Mapped[str | None]  # of all lines of a batch's input; None if they differ
    num_wrong_lines: Mapped[int | None]  # which fail alone; None: no line may be wrong
    # Labels of the models that the lines name, a line each; they were checked against these.
    model: Mapped[str | None]
    created_at: Mapped[datetime] = created_now()
    expires_at: Mapped[datetime | None]


class UploadRow(Owned, TableRow):
    """An Upload: a file that arrives in parts."""

    __tablename__ = "uploads"
    __table_args__ = (
        Index(
            "uploads_pending_index", "expires_at", postgresql_where=is_in("status", {UploadStatus.PENDING})
        ),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    status: Mapped[UploadStatus] = mapped_column(one_of("status", UploadStatus))
    purpose: Mapped[str]
    filename: Mapped[str]
    num_bytes: Mapped[int]  # as announced
    file_lifetime_seconds: Mapped[int | None]
    file_id: Mapped[str | None]
    created_at: Mapped[datetime] = created_now()
    expires_at: Mapped[datetime]


class UploadPartRow(TableRow):
    """A part of an Upload; its bytes are a Blob."""

    __tablename__ = "upload_parts"
    __table_args__ = (Index(None, "upload_id"), Index(None, "sha256"))

    id: Mapped[str] = mapped_column(primary_key=True)
    upload_id: Mapped[str] = mapped_column(ForeignKey("uploads.id", ondelete="CASCADE"))
    sha256: Mapped[str]
    num_bytes: Mapped[int]
    created_at: Mapped[datetime] = created_now()


class BatchFilesRow(TableRow):
    """The input and output files of a Batch that was made from a file, and the claim to process them."""

    __tablename__ = "batch_files"
    __table_args__ = (
        Index(
            "batch_files_open_index",
            "due_at",
            postgresql_where=is_in("stage", {FilesStage.READING, FilesStage.RUNNING}),
        ),
        Index(None, "input_file_id"),
    )

    batch_id: Mapped[str] = mapped_column(ForeignKey("batches.id", ondelete="CASCADE"), primary_key=True)
    stage: Mapped[FilesStage] = mapped_column(one_of("stage", FilesStage))
    endpoint: Mapped[str] = mapped_column(info=ASKED_FOR)
    input_file_id: Mapped[str] = mapped_column(info=ASKED_FOR)
    completion_window: Mapped[str] = mapped_column(info=ASKED_FOR)  # as the client gave it
    output_lifetime_seconds: Mapped[int | None] = mapped_column(info=ASKED_FOR)
    output_file_id: Mapped[str | None]
    error_file_id: Mapped[str | None]
    errors: Mapped[list[Any] | None]  # why the input could not be run
    # In buckets of the customer. A retry copies none of these: it would overwrite what is there.
    input_uri: Mapped[str | None]
    input_etag: Mapped[str | None]
    output_uri: Mapped[str | None]
    output_tries: Mapped[int] = mapped_column(server_default="0")  # that failed
    output_error: Mapped[str | None]  # of the last try; after the last one, the results are not there

    read_offset: Mapped[int] = mapped_column(server_default="0")  # bytes of the input, already requests
    read_lines: Mapped[int] = mapped_column(server_default="0")  # lines of these bytes, blank ones included
    fence: Mapped[int] = mapped_column(server_default="0")  # rises when a claim starts or is given up
    due_at: Mapped[datetime] = mapped_column(server_default=func.now())  # while claimed: the end of the lease
    read_at: Mapped[datetime | None]  # when its last line had become a request
    written_at: Mapped[datetime | None]  # when its files were complete
