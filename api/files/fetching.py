"""Takes the input of a batch from a customer's bucket, as if it had been uploaded."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from threading import BoundedSemaphore

from api.buckets import objects
from api.buckets.locations import Place
from api.buckets.objects import BucketError, FoundObject, MissingObjectError
from api.dependencies import Services
from api.errors import BodyTooLargeError, InvalidInputError, StorageFullError
from api.files import service
from api.files.decoding import Gunzip
from api.files.intake import Intake, Spool
from api.table_lines import LineForm, TableError, kind_of, lines_of
from worker.store.files.files import BATCH_INPUT, FileView

PARAM = "input_uri"
# What was fetched is a copy: it goes when it has surely been read.
KEPT_FOR = timedelta(days=7)
MAX_FETCHES = 4  # at once: each holds a thread of the API
_slots = BoundedSemaphore(MAX_FETCHES)


@dataclass(frozen=True, slots=True)
class Fetched:
    """The file that holds what an object held, and the object's ETag."""

    file: FileView
    etag: str | None


def fetch(services: Services, place: Place, form: LineForm | None) -> Fetched:
    """Read an object into a file; a table becomes lines by `form`.

    Raises:
        InvalidInputError: there is no such object, or it is no input of a batch.
        InvalidLinesError: some of its lines are wrong.
        StorageFullError: the bucket does not answer, or the file cannot be stored.
        BodyTooLargeError: it is larger than a file may be.

    """
    is_table = kind_of(place.name) in {".csv", ".parquet"}
    if is_table and form is None:
        message = f"table: is required for {place.name}: it says how a row becomes a request"
        raise InvalidInputError(message, param="table", code="missing_field")
    service.check_room(services)
    with _slot(), _told():
        found = objects.read(place)
        most = services.settings.max_file_bytes
        if found.num_bytes > most:
            raise BodyTooLargeError(f"{PARAM}: is larger than the limit of {most} bytes", param=PARAM)
        intake = service.intake(services, BATCH_INPUT)
        assert isinstance(intake, Intake)  # noqa: S101 - this is the purpose of one
        with closing(intake):
            if form is None:
                _feed(intake, found.pieces)
            else:
                _feed(intake, _table_lines(services, place, found, form))
            file = service.keep(
                services,
                intake.finish(),
                purpose=BATCH_INPUT,
                filename=place.name,
                lifetime_seconds=int(KEPT_FOR.total_seconds()),
            )
    return Fetched(file, found.etag)


def _feed(intake: Intake, pieces: Iterator[bytes]) -> None:
    for piece in pieces:
        for _ in intake.feed(piece):
            pass


def _table_lines(services: Services, place: Place, found: FoundObject, form: LineForm) -> Iterator[bytes]:
    """Yield the lines of a table, which is spooled first: the end of a Parquet file says what is in it."""
    with closing(Spool(services.spool, services.settings.max_file_bytes, name=PARAM)) as spool:
        is_packed = place.name.endswith(".gz")
        for piece in _unpacked(found.pieces) if is_packed else found.pieces:
            spool.write(piece)
        spool.flush()
        most = services.settings.max_file_bytes
        try:
            yield from lines_of(spool.path, form, name=place.name.removesuffix(".gz"), max_bytes=most)
        except (TableError, UnicodeDecodeError, EOFError) as error:
            raise InvalidInputError(f"{PARAM}: {error}", param=PARAM) from error


def _unpacked(pieces: Iterator[bytes]) -> Iterator[bytes]:
    gunzip = Gunzip()
    for piece in pieces:
        yield from gunzip.feed(piece)
    yield gunzip.close()


@contextmanager
def _slot() -> Iterator[None]:
    if not _slots.acquire(blocking=False):
        raise StorageFullError(f"{PARAM}: {MAX_FETCHES} objects are being read now. Try again.")
    try:
        yield
    finally:
        _slots.release()


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except MissingObjectError as error:
        raise InvalidInputError(f"{PARAM}: {error}", param=PARAM, code="object_missing") from error
    except BucketError as error:
        raise StorageFullError(f"{PARAM}: {error}. Nothing was accepted.", param=PARAM) from error
