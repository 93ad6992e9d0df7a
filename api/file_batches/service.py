"""Creates, reads, lists and cancels batches made from files. Each function is one transaction."""

from datetime import datetime, timedelta

from sqlalchemy.orm import Session

from api.batches.caching import choose_cache
from api.batches.operators import note
from api.batches.schemas import parse_window
from api.batches.starts import to_instant
from api.dependencies import IdempotencyKey, Services
from api.errors import InvalidInputError, KeyReusedError, NotFoundError
from api.file_batches.schemas import FileBatch, FileBatchSubmission, to_file_batch
from api.inputs.cursors import cut
from api.inputs.targets import check_url
from worker.contract.models import Model
from worker.store.batches import batches, idempotency
from worker.store.batches.labels import Labels
from worker.store.files import batch_files, file_batch_views, files
from worker.store.files.batch_files import NewFileBatch
from worker.values.caching import CacheMode

# A client that lost the answer retries within seconds, and counts its retries in a header.
RETRIES_WITHIN = timedelta(minutes=10)


def create(
    services: Services, submission: FileBatchSubmission, key: IdempotencyKey | None, *, is_retry: bool
) -> FileBatch:
    """Store a batch whose lines are read later; answer a retry with the batch that it made before.

    Raises:
        NotFoundError: no such file.
        InvalidInputError: the file is not the input of a batch.
        KeyReusedError: the idempotency key was used for another body.
        PermissionDeniedError: the tenant may not use the semantic cache.
        QuotaExceededError: the batch is over a quota of the tenant.

    """
    if submission.callback_url is not None:
        check_url(services.settings, submission.callback_url, param="callback_url")
    start_after = to_instant(services, submission.start_after)
    with services.store.transaction() as session:
        batch_id = None if key is None else _find(session, key)
        if batch_id is None:
            cache = choose_cache(services, session, submission.cache)
            new = _to_new(session, submission, cache, services.checkpoint.model, start_after)
            # Every submission takes this lock, so that a retry waits for the one with the lost answer.
            earlier = batch_files.find_same(session, new, within=RETRIES_WITHIN)
            batch_id = earlier if is_retry and key is None else None
            if batch_id is None:
                batch_id = batch_files.submit(session, new)
            if key is not None:
                idempotency.remember(session, key.key, key.fingerprint, batch_id)
        return _answer(session, batch_id)


def get(services: Services, batch_id: str) -> FileBatch:
    """Return the current state of a batch.

    Raises:
        NotFoundError: no such batch.

    """
    with services.store.look() as session:
        return _answer(session, batch_id)


def cancel(services: Services, batch_id: str) -> FileBatch:
    """Ask a batch to stop; an ended batch stays as it is.

    Raises:
        NotFoundError: no such batch.

    """
    with services.store.transaction() as session:
        if file_batch_views.get(session, batch_id) is not None:
            batches.cancel(session, batch_id)
            note(services, session, "batch.cancel", batch_id)
        return _answer(session, batch_id)


def page(
    services: Services, *, after: str | None, limit: int, labels: Labels
) -> tuple[list[FileBatch], bool]:
    """Return a page of batches, newest first, and whether there are more; raises UnknownCursorError."""
    with services.store.transaction() as session:
        found = file_batch_views.page(session, after=after, limit=limit + 1, labels=labels)
    return cut([to_file_batch(view) for view in found], limit)


def _answer(session: Session, batch_id: str) -> FileBatch:
    view = file_batch_views.get(session, batch_id)
    if view is None:
        raise NotFoundError(f"There is no batch {batch_id}.", param="batch_id")
    return to_file_batch(view)


def _find(session: Session, key: IdempotencyKey) -> str | None:
    try:
        return idempotency.find(session, key.key, key.fingerprint)
    except idempotency.FingerprintMismatchError as error:
        raise KeyReusedError(
            "This Idempotency-Key was used for another body. Choose a new key.", param="Idempotency-Key"
        ) from error


def _to_new(
    session: Session,
    submission: FileBatchSubmission,
    cache: CacheMode,
    model: Model,
    start_after: datetime | None,
) -> NewFileBatch:
    file = files.get(session, submission.input_file_id)
    if file is None:
        raise NotFoundError(f"There is no file {submission.input_file_id}.", param="input_file_id")
    if file.num_lines is None:
        raise InvalidInputError(
            f"input_file_id: the purpose of {file.id} must be batch, but is {file.purpose}",
            param="input_file_id",
        )
    lifetime = submission.output_expires_after
    return NewFileBatch(
        endpoint=submission.endpoint,
        input_file_id=file.id,
        num_lines=file.num_lines,
        num_bytes=file.num_bytes,
        completion_window=submission.completion_window,
        window=parse_window(submission.completion_window),
        name=submission.name or (submission.metadata or {}).get("name") or None,
        metadata=dict(submission.metadata or {}),
        callback_url=submission.callback_url,
        priority=submission.priority,
        output_lifetime=None if lifetime is None else timedelta(seconds=lifetime.seconds),
        cache=cache,
        cache_similarity=submission.cache_similarity,
        max_failed=submission.max_failed,
        max_total_tokens=submission.max_total_tokens,
        model=model,
        start_after=start_after,
    )
