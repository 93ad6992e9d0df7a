"""Pauses, resumes, deletes and retries batches, and cancels requests. Each function is one transaction."""

from hashlib import sha256
from typing import Never

from api.batches.operators import note
from api.dependencies import IdempotencyKey, Services
from api.errors import ConflictError, KeyReusedError, NotFoundError
from worker.store.batches import batch_views, idempotency, retries
from worker.store.batches.batch_views import BatchView
from worker.store.shards import control
from worker.store.shards.control import Done


def pause(services: Services, batch_id: str) -> None:
    """Pause a batch.

    Raises:
        NotFoundError: no such batch.
        ConflictError: it has ended, or is about to.

    """
    with services.store.transaction() as session:
        done = control.pause(session, batch_id)
        if done is Done.YES:
            note(services, session, "batch.pause", batch_id)
    if done is not Done.YES:
        _refuse(done, batch_id)


def resume(services: Services, batch_id: str) -> None:
    """Resume a paused batch; raises as `pause` does."""
    with services.store.transaction() as session:
        done = control.resume(session, batch_id)
        if done is Done.YES:
            note(services, session, "batch.resume", batch_id)
    if done is not Done.YES:
        _refuse(done, batch_id)


def cancel_request(services: Services, batch_id: str, index: int) -> None:
    """Cancel one request of a batch.

    Raises:
        NotFoundError: no such batch, or request.

    """
    with services.store.transaction() as session:
        done = control.cancel_request(session, batch_id, index)
        if done is Done.YES:
            note(services, session, "batch.cancel_request", batch_id)
    if done is not Done.YES:
        _refuse(done, batch_id, index)


def remove(services: Services, batch_id: str) -> None:
    """Delete a batch that has ended.

    Raises:
        NotFoundError: no such batch.
        ConflictError: it has not ended.

    """
    with services.store.transaction() as session:
        done = control.remove(session, batch_id)
        if done is Done.YES:
            note(services, session, "batch.delete", batch_id)
    if done is not Done.YES:
        _refuse(done, batch_id)


def retry(
    services: Services, batch_id: str, *, with_cancelled: bool, key: IdempotencyKey | None
) -> BatchView:
    """Submit a batch's failed requests again as a new batch, and with `with_cancelled` the cancelled ones.

    Raises:
        NotFoundError: no such batch.
        ConflictError: it has not ended, or has no such requests.
        KeyReusedError: the idempotency key was used for something else.

    """
    made_for = f"retry {batch_id} {with_cancelled}"
    fingerprint = sha256(made_for.encode()).hexdigest()
    with services.store.transaction() as session:
        new_id = None
        try:
            if key is not None:
                new_id = idempotency.find(session, key.key, fingerprint)
            if new_id is None:
                new_id = retries.retry(
                    session,
                    batch_id,
                    with_cancelled=with_cancelled,
                    shard_size=services.settings.shard_sizes[0],
                )
                if new_id is not None:
                    note(services, session, "batch.retry", batch_id)
                if key is not None and new_id is not None:
                    idempotency.remember(session, key.key, fingerprint, new_id)
        except idempotency.FingerprintMismatchError as error:
            raise KeyReusedError(
                "This Idempotency-Key was used for another request. Choose a new key.",
                param="Idempotency-Key",
            ) from error
        except retries.StillRunsError as error:
            raise ConflictError(f"{batch_id} has not ended. Cancel it first, or retry it later.") from error
        except retries.NothingToRetryError as error:
            which = "failed or cancelled" if with_cancelled else "failed"
            raise ConflictError(
                f"{batch_id} has no {which} requests to retry.", code="nothing_to_retry"
            ) from error
        view = None if new_id is None else batch_views.get(session, new_id)
    if view is None:
        _refuse(Done.NO_BATCH, batch_id)
    return view


def _refuse(done: Done, batch_id: str, index: int | None = None) -> Never:
    if done is Done.NO_REQUEST:
        raise NotFoundError(f"{batch_id} has no request with the index {index}.", param="index")
    if done is Done.BATCH_IS_LIVE:
        raise ConflictError(f"{batch_id} has not ended. Cancel it first.")
    if done is Done.BATCH_HAS_ENDED:
        raise ConflictError(f"{batch_id} has ended, or is about to end.")
    raise NotFoundError(f"There is no batch {batch_id}.", param="batch_id")
