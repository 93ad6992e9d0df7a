"""Keeps, reads, lists and deletes files. A blob is written before the row that names it commits."""

from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Literal

from sqlalchemy.orm import Session

from api.blobs.choice import BLOBS
from api.blobs.store import MissingBlobError, StorageError
from api.dependencies import Services
from api.errors import ConflictError, NotFoundError, StorageFullError
from api.files.intake import Intake, IntakeLimits, PlainIntake, ReceivedFile, storage_full, sweep
from api.files.translator import Translator
from api.inputs.cursors import cut
from api.inputs.tool_loops import ToolLimits
from worker.contract.models import Model
from worker.private import make_private
from worker.store.files import files
from worker.store.files.files import FileView, NewFile
from worker.store.tenants import quotas


def prepare(services: Services) -> None:
    """Make the file directories private, and remove the spools that killed processes left."""
    make_private(services.spool)
    make_private(services.settings.data_dir / BLOBS)
    sweep(services.spool)


def intake(services: Services, purpose: str, wrong_lines: str | None = None) -> Intake | PlainIntake:
    """Return an intake for a file of this purpose; raises StorageFullError.

    `wrong_lines` says what becomes of them in the input of a batch; None: what the setting says.
    """
    config = services.settings
    if purpose != files.BATCH_INPUT:
        return PlainIntake(services.spool, config.max_file_bytes)
    limits = IntakeLimits(config.max_file_bytes, config.max_line_bytes, config.max_requests_per_batch)
    return Intake(
        services.spool,
        limits,
        Translator(services.checkpoint, config.max_prompt_bytes, ToolLimits.of(config)),
        may_have_wrong_lines=(wrong_lines or config.wrong_lines) == "fail",
    )


def keep(
    services: Services,
    received: ReceivedFile,
    *,
    purpose: str,
    filename: str,
    lifetime_seconds: int | None,
) -> FileView:
    """Store a received file: its blob, then its row.

    Raises:
        StorageFullError: the blob cannot be kept.
        QuotaExceededError: the tenant has too many bytes of files.

    """
    check_room(services, received.num_bytes)
    new = to_row(services, received, purpose=purpose, filename=filename, lifetime_seconds=lifetime_seconds)
    keep_blob(services, received.path, received.sha256)
    with services.store.transaction() as session:
        name_blob(services, session, received.path, received.sha256)
        quotas.check_files(session, received.num_bytes)
        return files.add(session, new)


def check_room(services: Services, num_bytes: int = 1) -> None:
    """Refuse a file before anything of it is stored, if its tenant has no room for `num_bytes` more.

    Raises:
        QuotaExceededError: the tenant has no room.

    """
    with services.store.transaction() as session:
        quotas.check_files(session, num_bytes)


def to_row(
    services: Services,
    received: ReceivedFile,
    *,
    purpose: str,
    filename: str,
    lifetime_seconds: int | None,
) -> NewFile:
    """Return the row of a received file."""
    return NewFile(
        purpose=purpose,
        filename=filename,
        sha256=received.sha256,
        num_bytes=received.num_bytes,
        num_lines=received.num_lines,
        endpoint=received.endpoint,
        num_wrong_lines=received.num_wrong_lines,
        model=None if received.num_lines is None else to_labels(services, received.models),
        lifetime=None if lifetime_seconds is None else timedelta(seconds=lifetime_seconds),
    )


def to_labels(services: Services, models: Sequence[Model]) -> str:
    """Return how a file's row says which models its lines name."""
    return "\n".join(model.label for model in models or [services.checkpoint.model])


def models_of(services: Services, file: FileView) -> list[Model] | None:
    """Return the models that a file's lines name; None if one of them is not served here any more."""
    served = {one.model.label: one.model for one in services.checkpoint.served}
    labels = (file.model or "").split("\n")
    return [served[label] for label in labels] if served.keys() >= set(labels) else None


def keep_blob(services: Services, path: Path, sha256: str) -> None:
    """Store a spooled file's bytes as a blob; call this outside any transaction, because it is slow.

    Raises:
        StorageFullError: the blob cannot be kept.

    """
    try:
        services.blobs.keep(path, sha256)
    except StorageError as error:
        raise storage_full(error) from error


def name_blob(services: Services, session: Session, path: Path, sha256: str) -> None:
    """Lock a blob for the row that will name it; store it again if the sweep has deleted it.

    Raises:
        StorageFullError: the blob cannot be kept.

    """
    files.lock_blob(session, sha256)
    try:
        if not services.blobs.has(sha256):
            services.blobs.keep(path, sha256)
    except StorageError as error:
        raise storage_full(error) from error


def get(services: Services, file_id: str) -> FileView:
    """Return a file.

    Raises:
        NotFoundError: no such file.

    """
    with services.store.transaction() as session:
        view = files.get(session, file_id)
    if view is None:
        raise NotFoundError(f"There is no file {file_id}.", param="file_id")
    return view


def page(
    services: Services,
    *,
    purpose: str | None,
    after: str | None,
    limit: int,
    order: Literal["asc", "desc"],
) -> tuple[list[FileView], bool]:
    """Return a page of files, and whether there are more; raises UnknownCursorError."""
    with services.store.transaction() as session:
        found = files.page(session, purpose=purpose, after=after, limit=limit + 1, order=order)
    return cut(found, limit)


def read(services: Services, view: FileView, start: int, end: int) -> Iterator[bytes]:
    """Yield a file's bytes [start, end).

    Raises:
        NotFoundError: the bytes are gone.
        StorageFullError: the file store does not answer.

    """
    try:
        return services.blobs.read(view.sha256, start, end)
    except MissingBlobError as error:
        raise NotFoundError(f"The content of {view.id} was deleted.", param="file_id") from error
    except StorageError as error:
        raise StorageFullError(f"The file store does not answer: {error}. Try again.") from error


def remove(services: Services, file_id: str) -> None:
    """Delete a file.

    Raises:
        NotFoundError: no such file.
        ConflictError: a batch is still being read from it.

    """
    with services.store.transaction() as session:
        if files.is_being_read(session, file_id):
            raise ConflictError(
                f"A batch is being read from {file_id}. Delete the file when the batch is in_progress.",
                param="file_id",
                code="file_in_use",
            )
        if not files.remove(session, file_id):
            raise NotFoundError(f"There is no file {file_id}.", param="file_id")
