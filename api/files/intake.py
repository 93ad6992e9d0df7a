"""Takes a file in: measured, hashed, spooled to disk and checked line by line while it arrives."""

import fcntl
import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4

from api.errors import BodyTooLargeError, InvalidInputError, InvalidLinesError, StorageFullError
from api.files.gunzip import MAGIC, Gunzip
from api.files.lines import Line, LineChecker, LineSplitter, LineTooLongError
from worker.private import make_directory

SLICE_BYTES = 8 * 1024  # a millisecond or less of work: others wait for no more


@dataclass(frozen=True, slots=True)
class Limits:
    """What a file may be."""

    max_file_bytes: int
    max_line_bytes: int
    max_lines: int


@dataclass(frozen=True, slots=True)
class Received:
    """A file that is on disk, whole and checked."""

    path: Path
    sha256: str
    num_bytes: int
    num_lines: int
    endpoint: str | None  # None: its lines differ


def storage_full(error: Exception) -> StorageFullError:
    """Return what a client is told when files cannot be kept."""
    return StorageFullError(f"the file cannot be kept: {error}; nothing was accepted, try again")


@contextmanager
def _on_disk() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise storage_full(error) from error


def sweep(directory: Path) -> None:
    """Remove the spools that nobody writes any more: their process was killed."""
    for path in directory.glob("*"):
        with suppress(OSError), path.open("rb") as file:  # a lock that is held is a BlockingIOError
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink(missing_ok=True)


def _open_locked(path: Path) -> BinaryIO:
    """Open a new file, whose lock says until it is closed that its process lives."""
    while True:
        file = open(path, "xb", opener=partial(os.open, mode=0o600))  # noqa: SIM115 - the caller closes it
        fcntl.flock(file, fcntl.LOCK_EX)
        if os.fstat(file.fileno()).st_nlink:
            return file
        file.close()  # it was swept before it was locked


class Spool:
    """A file on disk that grows, with its digest. Close it whatever happens: that removes it.

    What the disk refuses is a StorageFullError.
    """

    def __init__(self, directory: Path, max_bytes: int, *, name: str = "file") -> None:
        self.path = directory / uuid4().hex
        self.num_bytes = 0
        self._name = name
        self._max_bytes = max_bytes
        self._digest = hashlib.sha256()
        with _on_disk():
            make_directory(directory)
            self._file = _open_locked(self.path)

    @property
    def sha256(self) -> str:
        """The digest of what was written, hexadecimal."""
        return self._digest.hexdigest()

    def write(self, piece: bytes) -> None:
        """Add some bytes; raises BodyTooLargeError over the limit."""
        self.num_bytes += len(piece)
        if self.num_bytes > self._max_bytes:
            raise BodyTooLargeError(
                f"{self._name}: over the limit of {self._max_bytes} bytes", param=self._name
            )
        self._digest.update(piece)
        with _on_disk():
            self._file.write(piece)

    def take(self, piece: bytes) -> Iterator[None]:
        """Add some bytes, as a sink that does nothing else with them."""
        self.write(piece)
        return iter(())

    def flush(self) -> None:
        """Give what was written to the operating system."""
        with _on_disk():
            self._file.flush()

    def close(self) -> None:
        """Remove it."""
        with suppress(OSError):  # its last bytes found no room
            self._file.close()
        self.path.unlink(missing_ok=True)


class Intake:
    """A batch's input file on its way in. Close it whatever happens."""

    def __init__(self, directory: Path, limits: Limits, translate: Callable[[Line], object]) -> None:
        self._checker = LineChecker(translate, limits.max_lines)
        self._splitter = LineSplitter(limits.max_line_bytes)
        self._head: bytes | None = b""  # until it is known whether this is gzip
        self._gunzip: Gunzip | None = None
        self._spool = Spool(directory, limits.max_file_bytes)

    def feed(self, data: bytes) -> Iterator[None]:
        """Take some bytes; yield after each little piece of work, so that others can have their turn.

        Raises:
            BodyTooLargeError: the file is over the limit.
            InvalidInputError: it says that it is gzip and is not.
            InvalidLinesError: so many lines are wrong, or blank, that the rest is not looked at.

        """
        if self._head is not None:
            self._head += data
            if len(self._head) < len(MAGIC):
                return
            data, self._head = self._head, None
            if data.startswith(MAGIC):
                self._gunzip = Gunzip()
        for piece in self._gunzip.feed(data) if self._gunzip else (data,):
            for start in range(0, len(piece), SLICE_BYTES):
                self._take(piece[start : start + SLICE_BYTES])
                yield

    def finish(self) -> Received:
        """Say that the file has ended.

        Raises:
            InvalidLinesError: some lines are wrong.
            InvalidInputError: there is no line, or the gzip is cut off.

        """
        if self._head:
            self._take(self._head)
        if self._gunzip:
            self._take(self._gunzip.close())
        self._check_lines(self._splitter.close())
        if self._checker.errors:
            raise InvalidLinesError(self._checker.errors)
        if not self._checker.num_lines:
            raise InvalidInputError("file: has no lines", param="file", code="empty_file")
        self._spool.flush()
        urls = self._checker.urls
        return Received(
            path=self._spool.path,
            sha256=self._spool.sha256,
            num_bytes=self._spool.num_bytes,
            num_lines=self._checker.num_lines,
            endpoint=next(iter(urls)) if len(urls) == 1 else None,
        )

    def close(self) -> None:
        """Remove what is on disk."""
        self._spool.close()

    def _take(self, piece: bytes) -> None:
        self._spool.write(piece)
        self._check_lines(self._splitter.feed(piece))

    def _check_lines(self, lines: Iterator[tuple[int, bytes | LineTooLongError]]) -> None:
        is_worth_it = all(self._checker.check(number, line) for number, line in lines)
        if not (is_worth_it and self._checker.check_blank(self._splitter.number, self._splitter.num_blank)):
            raise InvalidLinesError(self._checker.errors)
