"""Stores blobs in a directory: each appears whole or not at all, and survives a power cut."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4

from api.blobs.store import READ_BYTES, MissingBlobError, StorageError
from worker.private import make_directory

PARTIAL = ".partial"


class LocalBlobs:
    """A directory with one file per blob, in a subdirectory named by the first two digits of the digest."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def keep(self, path: Path, sha256: str) -> None:
        """Link or copy the file in under its digest, and sync its bytes and its name to the disk."""
        target = self._path(sha256)
        with _storage_errors():
            if target.exists():
                target.touch()  # counts as newly kept, so that no sweep deletes it
                return
            make_directory(self._directory)
            make_directory(target.parent)
            partial = target.with_name(f"{sha256}.{uuid4().hex}{PARTIAL}")
            try:
                _link_or_copy(path, partial)
                _sync(partial)
                partial.rename(target)
            finally:
                partial.unlink(missing_ok=True)
            _sync(target.parent)
            _sync(self._directory)

    def has(self, sha256: str) -> bool:
        """Return whether the directory holds this blob."""
        return self._path(sha256).exists()

    def read(self, sha256: str, start: int = 0, end: int | None = None) -> Iterator[bytes]:
        """Yield the bytes [start, end) in pieces."""
        try:
            file = self._path(sha256).open("rb")
        except FileNotFoundError:
            raise MissingBlobError(sha256) from None
        return _pieces(file, start, end)

    def drop(self, sha256: str) -> None:
        """Delete the file."""
        with _storage_errors():
            self._path(sha256).unlink(missing_ok=True)

    def kept(self) -> Iterator[tuple[str, datetime]]:
        """Yield each blob's digest and the time at which it was last kept."""
        for path in self._directory.glob("??/*"):
            if path.suffix != PARTIAL:
                yield path.name, datetime.fromtimestamp(path.stat().st_mtime, UTC)

    def _path(self, sha256: str) -> Path:
        return self._directory / sha256[:2] / sha256


def _pieces(file: BinaryIO, start: int, end: int | None) -> Iterator[bytes]:
    with file:
        file.seek(start)
        left = float("inf") if end is None else end - start
        while left > 0 and (piece := file.read(int(min(READ_BYTES, left)))):
            left -= len(piece)
            yield piece


def _link_or_copy(source: Path, target: Path) -> None:
    try:
        target.hardlink_to(source)
    except OSError:  # another file system, or one without links
        target.touch(mode=0o600)
        shutil.copyfile(source, target)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _storage_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(f"the file store: {error.strerror or error}") from error
