"""What a blob store can do.

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
    """Keeps bytes under the hexadecimal SHA-256 of them. Every method may raise StorageError."""

    def keep(self, path: Path, sha256: str) -> None:
        """Take the file at `path` in, durably, under its digest. The file stays where it is."""

    def has(self, sha256: str) -> bool:
        """Whether something is kept under this digest."""

    def read(self, sha256: str, start: int = 0, end: int | None = None) -> Iterator[bytes]:
        """Yield the bytes [start, end) in pieces; raises MissingBlobError before the first."""

    def drop(self, sha256: str) -> None:
        """Forget a blob, if it is there."""

    def kept(self) -> Iterator[tuple[str, datetime]]:
        """Yield the digest of everything that is kept, and since when."""
