"""Reads and writes objects in the buckets of customers. Needs `headrace[s3]`."""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from api.buckets.locations import Bucket, Buckets, Place
from worker.settings import refuse

logger = logging.getLogger(__name__)

PART_BYTES = 8 << 20
READ_BYTES = 64 * 1024
LONGEST_SECONDS = 600.0  # to read an object
CONNECT_SECONDS, ANSWER_SECONDS, RETRY_SECONDS = 5, 60, 15


class BucketError(Exception):
    """An object cannot be read or written now. The message is for the customer."""


class MissingObjectError(BucketError):
    """There is no such object."""


@dataclass(frozen=True, slots=True)
class FoundObject:
    """An object that is being read. `pieces` raises BucketError."""

    num_bytes: int
    etag: str | None
    pieces: Iterator[bytes]


def load_buckets(file: Path | None) -> Buckets:
    """Return the buckets that a TOML file lists; end the process if they cannot be used as it says."""
    buckets = Buckets.load(file)
    for bucket in buckets.listed:
        if not _has_library():
            refuse("HEADRACE_BUCKETS: buckets need another library: install headrace[s3]")
        from obstore.exceptions import BaseError  # noqa: PLC0415 - a deployment without buckets need not have it

        try:
            _open(bucket)  # without a call
        except (BaseError, ValueError) as error:
            refuse(f"HEADRACE_BUCKETS: {bucket.url}: {str(error).partition(chr(10))[0]}")
    return buckets


def read(place: Place) -> FoundObject:
    """Open an object.

    Raises:
        BucketError: it cannot be read.
        MissingObjectError: it does not exist.

    """
    with _told(place):
        import obstore  # noqa: PLC0415

        found = obstore.get(_open(place.bucket), place.key)
        stream = found.stream(min_chunk_size=READ_BYTES)
        return FoundObject(found.meta["size"], found.meta["e_tag"], _pieces(place, stream))


def write(place: Place, file: Path) -> None:
    """Write a file as an object, in parts if it is large; the object appears whole or not at all.

    Raises:
        BucketError: it cannot be written.

    """
    with _told(place):
        import obstore  # noqa: PLC0415

        obstore.put(_open(place.bucket), place.key, file, chunk_size=PART_BYTES, max_concurrency=2)


def _open(bucket: Bucket) -> Any:
    from obstore.store import from_url  # noqa: PLC0415

    # Each kind of store has types of its own for these.
    options: Any = bucket.options
    client: Any = {
        "allow_http": bucket.allow_http,
        "connect_timeout": timedelta(seconds=CONNECT_SECONDS),
        "timeout": timedelta(seconds=ANSWER_SECONDS),
    }
    retries: Any = {"max_retries": 3, "retry_timeout": timedelta(seconds=RETRY_SECONDS)}
    return from_url(bucket.url, config=options, client_options=client, retry_config=retries)


def _pieces(place: Place, stream: Iterator[Any]) -> Iterator[bytes]:
    deadline = time.monotonic() + LONGEST_SECONDS
    with _told(place):
        for piece in stream:
            if time.monotonic() > deadline:
                raise BucketError(f"reading {place.name} takes longer than {LONGEST_SECONDS:.0f} s")
            yield bytes(piece)


def _has_library() -> bool:
    return find_spec("obstore") is not None


@contextmanager
def _told(place: Place) -> Iterator[None]:
    """Turn the errors of the store, whose texts name endpoints, into a customer's."""
    from obstore import exceptions  # noqa: PLC0415

    try:
        yield
    except (exceptions.NotFoundError, FileNotFoundError):
        raise MissingObjectError(f"no such object, or bucket: {place.bucket.url}/{place.key}") from None
    except (exceptions.BaseError, OSError) as error:
        logger.warning("%s: %s", place.bucket.url, str(error).partition("\n")[0])
        is_refused = isinstance(
            error, (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError, PermissionError)
        )
        problem = "refuses access" if is_refused else "does not answer"
        raise BucketError(f"the bucket {place.bucket.url} {problem}") from error
