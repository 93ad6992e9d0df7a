"""Deletes expired files and uploads, blobs that no row names, and the spools of killed processes."""

from collections.abc import Iterator
from itertools import islice

from api.dependencies import Services
from api.files.intake import sweep
from worker.store.files import files, uploads

AT_ONCE = 500


def tidy(services: Services) -> None:
    """Delete everything that is due, once."""
    with services.store.transaction() as session:
        files.remove_expired(session)
        uploads.expire(session, limit=AT_ONCE)
        horizon = files.orphan_horizon(session)
    old = (sha256 for sha256, since in services.blobs.kept() if since < horizon)
    while some := list(islice(old, AT_ONCE)):
        for sha256 in _orphans(services, some):
            _drop(services, sha256)
    sweep(services.spool)


def _orphans(services: Services, sha256s: list[str]) -> Iterator[str]:
    with services.store.transaction() as session:
        named = files.named_blobs(session, sha256s)
    return (sha256 for sha256 in sha256s if sha256 not in named)


def _drop(services: Services, sha256: str) -> None:
    with services.store.transaction() as session:
        files.lock_blob(session, sha256)  # a transaction that names it waits, then looks again
        if not files.named_blobs(session, [sha256]):
            services.blobs.drop(sha256)
