"""Begins, fills, completes and cancels uploads. A part is a blob until its upload completes or expires."""

import hashlib
import time
from collections.abc import Iterator, Sequence

from api.blobs.store import MissingBlobError, StorageError
from api.dependencies import Services
from api.errors import BodyTooLargeError, ConflictError, InvalidInputError, NotFoundError
from api.files import service as file_service
from api.files.intake import ReceivedFile, Spool, storage_full
from api.files.schemas import UploadCompletion, UploadSubmission
from worker.contract.states import UploadStatus
from worker.store.files import files, uploads
from worker.store.files.files import FileView
from worker.store.files.uploads import NewUpload, PartView, UploadView
from worker.store.tenants import quotas

MAX_PART_BYTES = 64 << 20


def create(services: Services, submission: UploadSubmission) -> UploadView:
    """Begin an upload.

    Raises:
        BodyTooLargeError: the announced size is over the limit of a file.
        QuotaExceededError: the tenant has no room for the announced size.

    """
    most = services.settings.max_file_bytes
    if submission.bytes > most:
        raise BodyTooLargeError(f"bytes: must be at most {most}", param="bytes")
    new = NewUpload(
        purpose=submission.purpose,
        filename=submission.filename,
        num_bytes=submission.bytes,
        file_lifetime_seconds=submission.expires_after.seconds if submission.expires_after else None,
    )
    with services.store.transaction() as session:
        quotas.check_files(session, new.num_bytes)
        return uploads.add(session, new)


def spool(services: Services) -> Spool:
    """Return a Spool for a part; raises StorageFullError."""
    return Spool(services.spool, MAX_PART_BYTES, name="data")


def check_open(services: Services, upload_id: str) -> None:
    """Refuse a part before it is read, if the upload accepts none.

    Raises:
        NotFoundError: no such upload.
        ConflictError: the upload is over.

    """
    with services.store.transaction() as session:
        _pending(uploads.get(session, upload_id), upload_id)


def add_part(services: Services, upload_id: str, part: Spool) -> PartView:
    """Store a part that has arrived.

    Raises:
        NotFoundError: no such upload.
        ConflictError: the upload is over.
        BodyTooLargeError: the parts have more than twice the announced bytes.
        StorageFullError: the bytes cannot be kept.

    """
    part.flush()
    file_service.keep_blob(services, part.path, part.sha256)
    with services.store.transaction() as session:
        upload = _pending(uploads.get(session, upload_id, lock=True), upload_id)
        # A part that was sent again after a lost answer is stored twice until the upload ends.
        most = 2 * upload.num_bytes
        if uploads.num_part_bytes(session, upload_id) + part.num_bytes > most:
            raise BodyTooLargeError(
                f"data: the parts have over twice the {upload.num_bytes} bytes announced", param="data"
            )
        file_service.name_blob(services, session, part.path, part.sha256)
        return uploads.add_part(session, upload_id, sha256=part.sha256, num_bytes=part.num_bytes)


def complete(
    services: Services, upload_id: str, completion: UploadCompletion
) -> tuple[UploadView, FileView | None]:
    """Make a file of the parts in the given order; answer a completed upload with the file it has.

    Raises:
        NotFoundError: no such upload.
        ConflictError: the upload is over.
        InvalidInputError: the parts differ from the announcement, or are not the input of a batch.
        StorageFullError: the bytes cannot be kept.
        QuotaExceededError: the file is larger unpacked than announced, and the tenant has no room for that.

    """
    with services.store.transaction() as session:
        upload = uploads.get(session, upload_id)
        if upload is not None and upload.status is UploadStatus.COMPLETED:
            return upload, files.get(session, upload.file_id or "")
        upload = _pending(upload, upload_id)
        known = uploads.parts(session, upload_id)
    parts = _chosen(completion.part_ids, known, upload)
    intake = file_service.intake(services, upload.purpose, completion.wrong_lines)
    try:
        digest = hashlib.md5(usedforsecurity=False)
        for piece in _pieces(services, parts):
            digest.update(piece)
            for _ in intake.feed(piece):
                time.sleep(0)  # other threads get a turn
        if completion.md5 is not None and completion.md5.lower() != digest.hexdigest():
            raise InvalidInputError(
                f"md5: does not match the parts, which have {digest.hexdigest()}", param="md5"
            )
        return _finish(services, upload, intake.finish())
    finally:
        intake.close()


def cancel(services: Services, upload_id: str) -> UploadView:
    """Cancel an upload and drop its parts; answer a cancelled upload as it is.

    Raises:
        NotFoundError: no such upload.
        ConflictError: the upload is over.

    """
    with services.store.transaction() as session:
        upload = uploads.get(session, upload_id, lock=True)
        if upload is not None and upload.status is UploadStatus.CANCELLED:
            return upload
        _pending(upload, upload_id)
        uploads.end(session, upload_id, UploadStatus.CANCELLED)
        ended = uploads.get(session, upload_id)
    if ended is None:
        raise NotFoundError(f"There is no upload {upload_id}.", param="upload_id")
    return ended


def _pending(upload: UploadView | None, upload_id: str) -> UploadView:
    if upload is None:
        raise NotFoundError(f"There is no upload {upload_id}.", param="upload_id")
    if upload.status is not UploadStatus.PENDING:
        raise ConflictError(
            f"The upload {upload_id} is already {upload.status}.", param="upload_id", code="upload_over"
        )
    return upload


def _chosen(part_ids: Sequence[str], known: dict[str, PartView], upload: UploadView) -> list[PartView]:
    for i, part_id in enumerate(part_ids):
        if part_id not in known:
            raise InvalidInputError(
                f"part_ids[{i}]: {part_id} is not a part of {upload.id}", param=f"part_ids[{i}]"
            )
    if len(set(part_ids)) != len(part_ids):
        raise InvalidInputError("part_ids: a part is named twice", param="part_ids")
    parts = [known[part_id] for part_id in part_ids]
    total = sum(part.num_bytes for part in parts)
    if total != upload.num_bytes:
        raise InvalidInputError(
            f"part_ids: the parts have {total} bytes, but {upload.num_bytes} were announced", param="part_ids"
        )
    return parts


def _pieces(services: Services, parts: Sequence[PartView]) -> Iterator[bytes]:
    for part in parts:
        try:
            yield from services.blobs.read(part.sha256)
        except (MissingBlobError, StorageError) as error:
            raise storage_full(error) from error


def _finish(
    services: Services, upload: UploadView, received: ReceivedFile
) -> tuple[UploadView, FileView | None]:
    file_service.keep_blob(services, received.path, received.sha256)
    with services.store.transaction() as session:
        now = uploads.get(session, upload.id, lock=True)
        if now is not None and now.status is UploadStatus.COMPLETED:  # by a retry that was faster
            return now, files.get(session, now.file_id or "")
        _pending(now, upload.id)
        file_service.name_blob(services, session, received.path, received.sha256)
        quotas.check_files(session, received.num_bytes - upload.num_bytes)  # the announced bytes count
        new = file_service.to_row(
            services,
            received,
            purpose=upload.purpose,
            filename=upload.filename,
            lifetime_seconds=upload.file_lifetime_seconds,
        )
        file = files.add(session, new)
        uploads.end(session, upload.id, UploadStatus.COMPLETED, file.id)
        return uploads.get(session, upload.id) or upload, file
