"""Defines the bodies of files and uploads in OpenAI's format. Times are Unix seconds."""

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from api.inputs.schema import NonEmptyText, Schema
from worker.store.files.files import FileView
from worker.store.files.uploads import PartView, UploadView

HOUR, MONTH = 3600, 30 * 86400

# A batch reads its requests from files of the first purpose; the others are stored as they are.
PURPOSES = ("batch", "assistants", "evals", "fine-tune", "user_data", "vision")
Purpose = Literal["batch", "assistants", "evals", "fine-tune", "user_data", "vision"]
WrongLines = Annotated[
    Literal["refuse", "fail"],
    Field(
        description="What becomes of the wrong lines of a batch's input: `refuse` refuses the file, `fail`"
        " makes each a failed request of the batch. Default: HEADRACE_WRONG_LINES."
    ),
]
LifetimeSeconds = Annotated[int, Field(ge=HOUR, le=MONTH)]


class ExpiresAfter(Schema):
    """The time after which a file is deleted by itself."""

    anchor: Literal["created_at"]
    seconds: LifetimeSeconds


class FileObject(BaseModel):
    """A file."""

    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    expires_at: int | None
    filename: str
    purpose: str
    status: Literal["processed"] = "processed"
    status_details: str | None = Field(default=None, description="How many wrong lines will fail, if any.")


class FileList(BaseModel):
    """Files in order of creation. Pass `last_id` as `after` to read on."""

    object: Literal["list"] = "list"
    data: list[FileObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


class FileDeleted(BaseModel):
    """The answer to a deletion: the file is gone."""

    id: str
    object: Literal["file"] = "file"
    deleted: Literal[True] = True


class UploadSubmission(Schema):
    """A file to upload in parts."""

    purpose: Purpose
    filename: Annotated[NonEmptyText, Field(max_length=255)]
    bytes: Annotated[int, Field(ge=1, description="Of all parts together.")]
    mime_type: Annotated[NonEmptyText, Field(max_length=255)]
    expires_after: ExpiresAfter | None = Field(default=None, description="Of the file that comes of it.")


class UploadObject(BaseModel):
    """The current state of an upload."""

    id: str
    object: Literal["upload"] = "upload"
    bytes: int
    created_at: int
    expires_at: int
    filename: str
    purpose: str
    status: Literal["pending", "completed", "cancelled", "expired"]
    file: FileObject | None = None


class PartObject(BaseModel):
    """A part of an upload."""

    id: str
    object: Literal["upload.part"] = "upload.part"
    created_at: int
    upload_id: str


class UploadCompletion(Schema):
    """The parts that make up the file, in order."""

    part_ids: Annotated[list[Annotated[NonEmptyText, Field(max_length=64)]], Field(min_length=1)]
    md5: Annotated[str, Field(pattern="^[0-9a-fA-F]{32}$", description="Of the whole file.")] | None = None
    wrong_lines: WrongLines | None = None


def to_file(view: FileView) -> FileObject:
    """Return a file as the client sees it."""
    return FileObject(
        id=view.id,
        bytes=view.num_bytes,
        created_at=int(view.created_at.timestamp()),
        expires_at=None if view.expires_at is None else int(view.expires_at.timestamp()),
        filename=view.filename,
        purpose=view.purpose,
        status_details=_told(view.num_wrong_lines),
    )


def _told(num_wrong_lines: int | None) -> str | None:
    if not num_wrong_lines:
        return None
    are = "line is" if num_wrong_lines == 1 else "lines are"
    return f"{num_wrong_lines} {are} wrong and will fail in a batch."


def to_upload(view: UploadView, file: FileView | None = None) -> UploadObject:
    """Return an upload as the client sees it."""
    return UploadObject(
        id=view.id,
        bytes=view.num_bytes,
        created_at=int(view.created_at.timestamp()),
        expires_at=int(view.expires_at.timestamp()),
        filename=view.filename,
        purpose=view.purpose,
        status=view.status.value,
        file=None if file is None else to_file(file),
    )


def to_part(view: PartView) -> PartObject:
    """Return a part as the client sees it."""
    return PartObject(id=view.id, created_at=int(view.created_at.timestamp()), upload_id=view.upload_id)
