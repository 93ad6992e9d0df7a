"""What a blob store can do, and which one the settings ask for.

BlobError
├── MissingBlobError  nothing is kept under this key
└── StorageError      the disk is full, the bucket cannot be reached, ...
"""

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Protocol

from worker.settings import Settings

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


def blob_store(config: Settings) -> BlobStore:
    """Return the store that HEADRACE_BLOB_URL names, by default a directory in HEADRACE_DATA_DIR.

    Raises:
        SystemExit: it is a bucket, and the library for that is not installed.

    """
    # Imported here: a deployment with a local directory does not have the library for buckets.
    if config.blob_url is None:
        from api.blobs.local import LocalBlobs  # noqa: PLC0415

        return LocalBlobs(config.data_dir / "blobs")
    try:
        from api.blobs.s3 import S3Blobs  # noqa: PLC0415
    except ModuleNotFoundError:
        raise SystemExit("HEADRACE_BLOB_URL names a bucket: install headrace[s3]") from None
    return S3Blobs(config.blob_url)
