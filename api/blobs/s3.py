"""Stores blobs in an S3 bucket, or in a service with its protocol. Credentials come from AWS_*, as usual."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import obstore
from obstore.exceptions import BaseError, NotFoundError
from obstore.store import S3Store

from api.blobs.store import READ_BYTES, MissingBlobError, StorageError

PART_BYTES = 8 << 20
MISSING = (NotFoundError, FileNotFoundError)


class S3Blobs:
    """A bucket, or a prefix in one, with one object per blob. An object appears whole or not at all."""

    def __init__(self, url: str, **options: Any) -> None:
        self._bucket = S3Store.from_url(url, **options)

    def keep(self, path: Path, sha256: str) -> None:
        """Upload the file, in parts if it is large; an existing blob counts as newly kept."""
        with _storage_errors():
            obstore.put(self._bucket, sha256, path, chunk_size=PART_BYTES, max_concurrency=2)

    def has(self, sha256: str) -> bool:
        """Return whether the bucket holds this blob."""
        with _storage_errors():
            try:
                obstore.head(self._bucket, sha256)
            except MISSING:
                return False
            return True

    def read(self, sha256: str, start: int = 0, end: int | None = None) -> Iterator[bytes]:
        """Yield the bytes [start, end) in pieces."""
        if end is not None and end <= start:
            return iter(())
        options: Any = {"range": {"offset": start} if end is None else (start, end)}
        with _storage_errors():
            try:
                found = obstore.get(self._bucket, sha256, options=options if start or end else None)
            except MISSING:
                raise MissingBlobError(sha256) from None
        return _pieces(found.stream(min_chunk_size=READ_BYTES))

    def drop(self, sha256: str) -> None:
        """Delete the object."""
        with _storage_errors(), suppress(*MISSING):
            obstore.delete(self._bucket, sha256)

    def kept(self) -> Iterator[tuple[str, datetime]]:
        """Yield each blob's digest and the time at which it was last kept."""
        with _storage_errors():
            for page in obstore.list(self._bucket):
                for found in page:
                    yield found["path"], found["last_modified"]


def _pieces(stream: Iterator[bytes]) -> Iterator[bytes]:
    with _storage_errors():
        for piece in stream:
            yield bytes(piece)


@contextmanager
def _storage_errors() -> Iterator[None]:
    try:
        yield
    except (BaseError, OSError) as error:
        raise StorageError(f"the bucket: {error}") from error
