"""Defines the interface of a blob store, and its errors.

BlobError
├── MissingBlobError  nothing is kept under this key
└── StorageError      the disk is full, the bucket cannot be reached, ...
"""

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Protocol

READ_BYTES = 64 * 1024


class BlobError(Exception):
    """A blob cannot be read or kept."""


class MissingBlobError(BlobError):
    """Nothing is kept under this key."""


class StorageError(BlobError):
    """The store itself fails. The message says how."""


class BlobStore(Protocol):
    """Keeps bytes under their hexadecimal SHA-256. Every method may raise StorageError."""

    def keep(self, path: Path, sha256: str) -> None:
        """Store a copy of the file at `path` durably under its digest. The file itself stays."""

    def has(self, sha256: str) -> bool:
        """Return whether a blob is kept under this digest."""

    def read(self, sha256: str, start: int = 0, end: int | None = None) -> Iterator[bytes]:
        """Yield the bytes [start, end) in pieces; raises MissingBlobError before the first."""

    def drop(self, sha256: str) -> None:
        """Delete a blob, if it is there."""

    def kept(self) -> Iterator[tuple[str, datetime]]:
        """Yield each blob's digest and the time at which it was last kept."""
