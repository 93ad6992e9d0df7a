"""Takes a file in: measures, hashes, spools and checks it line by line while it arrives."""

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
from api.files.decoding import HEAD_BYTES, MAGIC, Gunzip, Utf8
from api.files.lines import Line, LineChecker, LineSplitter, LineTooLongError
from worker.contract.models import Model
from worker.private import make_directory
from worker.store.requests.requests import NewRequest

SLICE_BYTES = 8 * 1024  # at most a millisecond of work, for which other requests wait


@dataclass(frozen=True, slots=True)
class IntakeLimits:
    """Limits of an input file: its bytes, the bytes of a line, and its lines."""

    max_file_bytes: int
    max_line_bytes: int
    max_lines: int


@dataclass(frozen=True, slots=True)
class ReceivedFile:
    """A whole, checked file on disk."""

    path: Path
    sha256: str
    num_bytes: int
    num_lines: int | None = None  # None: it is no input of a batch, so nobody has looked inside
    endpoint: str | None = None  # of all right lines; None: they differ, or there are none
    num_wrong_lines: int | None = None  # None: no line may be wrong
    models: tuple[Model, ...] = ()  # that its right lines name


def storage_full(error: Exception) -> StorageFullError:
    """Return the client's error for a file that cannot be kept."""
    return StorageFullError(f"The file cannot be stored: {error}. Nothing was accepted. Try again.")


@contextmanager
def _on_disk() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise storage_full(error) from error


def sweep(directory: Path) -> None:
    """Remove the spools whose process was killed, as their free lock shows."""
    for path in directory.glob("*"):
        with suppress(OSError), path.open("rb") as file:  # a lock that is held is a BlockingIOError
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink(missing_ok=True)


def _open_locked(path: Path) -> BinaryIO:
    """Open a new file and lock it; the lock shows that its process lives."""
    while True:
        file = open(path, "xb", opener=partial(os.open, mode=0o600))  # noqa: SIM115 - the caller closes it
        fcntl.flock(file, fcntl.LOCK_EX)
        if os.fstat(file.fileno()).st_nlink:
            return file
        file.close()  # it was swept before it was locked


class Spool:
    """A growing file on disk, with its digest. Always close it: that removes the file.

    Raises StorageFullError for what the disk refuses.
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
        """The hexadecimal SHA-256 of the bytes written."""
        return self._digest.hexdigest()

    def write(self, piece: bytes) -> None:
        """Add some bytes; raises BodyTooLargeError over the limit."""
        self.num_bytes += len(piece)
        if self.num_bytes > self._max_bytes:
            raise BodyTooLargeError(
                f"{self._name}: is larger than the limit of {self._max_bytes} bytes", param=self._name
            )
        self._digest.update(piece)
        with _on_disk():
            self._file.write(piece)

    def take(self, piece: bytes) -> Iterator[None]:
        """Add some bytes, as the sink of a form."""
        self.write(piece)
        return iter(())

    def flush(self) -> None:
        """Hand the written bytes to the operating system."""
        with _on_disk():
            self._file.flush()

    def close(self) -> None:
        """Close and remove the file."""
        with suppress(OSError):  # the disk has no room for the last bytes
            self._file.close()
        self.path.unlink(missing_ok=True)


class PlainIntake:
    """A file of which only the bytes matter, while it arrives. Always close it."""

    def __init__(self, directory: Path, max_bytes: int) -> None:
        self._spool = Spool(directory, max_bytes)

    def feed(self, data: bytes) -> Iterator[None]:
        """Take some bytes; raises BodyTooLargeError over the limit."""
        return self._spool.take(data)

    def finish(self) -> ReceivedFile:
        """End the file and return it."""
        self._spool.flush()
        return ReceivedFile(self._spool.path, self._spool.sha256, self._spool.num_bytes)

    def close(self) -> None:
        """Remove the file from the disk."""
        self._spool.close()


class Intake:
    """A batch's input file while it arrives. Always close it.

    `may_have_wrong_lines`: these are only counted, and fail when a batch runs.
    """

    def __init__(
        self,
        directory: Path,
        limits: IntakeLimits,
        translate: Callable[[Line], NewRequest],
        *,
        may_have_wrong_lines: bool = False,
    ) -> None:
        self._checker = LineChecker(translate, limits.max_lines, may_have_wrong_lines=may_have_wrong_lines)
        self._splitter = LineSplitter(limits.max_line_bytes)
        self._head: bytes | None = b""  # until it is known whether this is gzip
        self._gunzip: Gunzip | None = None
        self._utf8 = Utf8()
        self._spool = Spool(directory, limits.max_file_bytes)

    def feed(self, data: bytes) -> Iterator[None]:
        """Take some bytes; yield after each small piece of work, so that other requests get a turn.

        Raises:
            BodyTooLargeError: the file is over the limit.
            InvalidInputError: the file begins like gzip and is damaged.
            InvalidLinesError: too many lines are wrong, or blank, to go on.

        """
        if self._head is not None:
            self._head += data
            if len(self._head) < HEAD_BYTES:
                return
            data, self._head = self._head, None
            if data.startswith(MAGIC):
                self._gunzip = Gunzip()
        for piece in self._gunzip.feed(data) if self._gunzip else (data,):
            for start in range(0, len(piece), SLICE_BYTES):
                self._take(piece[start : start + SLICE_BYTES])
                yield

    def finish(self) -> ReceivedFile:
        """End the file and return it, if all of it is right.

        Raises:
            InvalidLinesError: some lines are wrong.
            InvalidInputError: there is no line, or the gzip is cut off.

        """
        if self._head:
            self._take(self._head)
        if self._gunzip:
            self._take(self._gunzip.close())
        self._keep(self._utf8.close())
        self._check_lines(self._splitter.close())
        if self._checker.errors:
            raise InvalidLinesError(self._checker.errors)
        if not self._checker.num_lines:
            raise InvalidInputError("file: has no lines", param="file", code="empty_file")
        self._spool.flush()
        urls = self._checker.urls
        return ReceivedFile(
            path=self._spool.path,
            sha256=self._spool.sha256,
            num_bytes=self._spool.num_bytes,
            num_lines=self._checker.num_lines,
            endpoint=next(iter(urls)) if len(urls) == 1 else None,
            num_wrong_lines=self._checker.num_wrong,
            models=tuple(self._checker.models),
        )

    def close(self) -> None:
        """Remove the file from the disk."""
        self._spool.close()

    def _take(self, piece: bytes) -> None:
        self._keep(self._utf8.feed(piece))

    def _keep(self, piece: bytes) -> None:
        self._spool.write(piece)
        self._check_lines(self._splitter.feed(piece))

    def _check_lines(self, lines: Iterator[tuple[int, bytes | LineTooLongError]]) -> None:
        is_worth_it = all(self._checker.check(number, line) for number, line in lines)
        if not (is_worth_it and self._checker.check_blank(self._splitter.number, self._splitter.num_blank)):
            raise InvalidLinesError(self._checker.errors)
