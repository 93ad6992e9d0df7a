"""Reads batches out of their input files: turns lines into stored requests, a Chunk per transaction."""

import logging
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import timedelta
from itertools import islice
from threading import Event

from api.blobs.store import BlobError, MissingBlobError
from api.dependencies import Services
from api.errors import LineError
from api.files.lines import MAX_ERRORS, Line, LineSplitter, LineTooLongError, WrongLineError, read_line
from api.files.translator import Translator
from worker.store.database.renewing import renewing
from worker.store.files import batch_files, files
from worker.store.files.batch_files import FilesClaim
from worker.store.files.files import FileView
from worker.store.requests.earlier import Earlier
from worker.store.requests.requests import NewRequest

logger = logging.getLogger(__name__)

LEASE = timedelta(seconds=6)
RENEW_SECONDS = 1.5
LONGEST_SECONDS = 3600.0
CHUNK_LINES = 2048  # per transaction
TURN_CHUNKS = 16  # then the next batch gets a turn
RETRY_AFTER = timedelta(seconds=5)
# Batches whose earlier requests are remembered between turns, to find Duplicates.
MAX_BATCHES_REMEMBERED = 8


@dataclass(frozen=True, slots=True)
class BatchReader:
    """Reads the input of batches in turns."""

    services: Services
    stopping: Event
    _earlier: OrderedDict[str, Earlier] = field(default_factory=OrderedDict)  # by batch

    def turn(self) -> bool:
        """Read some of a batch's input; return False if no batch waits for that."""
        with self.services.store.transaction() as session:
            model = self.services.checkpoint.model
            held = batch_files.claim_to_read(session, lease=LEASE, model=model)
        if held is None:
            return False
        own = replace(self.services, store=self.services.store.of_tenant(held.tenant_id))
        replace(self, services=own).work_on(held)
        return True

    def work_on(self, held: FilesClaim) -> None:
        """Read some of a claimed batch's input, as its tenant."""
        with self.services.store.transaction() as session:
            file = files.get(session, held.input_file_id)
        if file is None:
            self._refuse_missing(held)
            return
        try:
            with renewing(
                self.services.store,
                lambda session: batch_files.renew(session, held, lease=LEASE),
                every_seconds=RENEW_SECONDS,
                at_most_seconds=LONGEST_SECONDS,
            ):
                self._read(held, file)
        except MissingBlobError:
            self._refuse_missing(held)
        except BlobError as error:
            logger.warning("%s is not read yet: %s", held.batch_id, error)
            self._put_back(held, RETRY_AFTER)

    def _read(self, held: FilesClaim, file: FileView) -> None:
        translate = Translator(self.services.checkpoint, self.services.settings.max_prompt_bytes)
        model = self.services.checkpoint.model.label
        was_checked = (file.endpoint, file.model) == (held.endpoint, model)
        if not was_checked and (errors := self._errors(held, file, translate)):
            self._refuse(held, errors)
            return
        splitter = LineSplitter(self.services.settings.max_line_bytes)
        requests = (translate(read_line(line)) for _, line in self._lines(splitter, file, held.read_offset))

        def read() -> _Chunk:
            found = list(islice(requests, CHUNK_LINES))
            return _Chunk(found, held.read_offset + splitter.offset)

        # Storing takes as long as reading, so the next lines are read while these are stored.
        with ThreadPoolExecutor(1) as ahead:
            coming = ahead.submit(read)
            for number in range(TURN_CHUNKS):
                try:
                    chunk = coming.result()
                except WrongLineError as error:  # something has changed since the file was checked
                    self._refuse(held, [error.at(splitter.number)])
                    return
                if number + 1 < TURN_CHUNKS:
                    coming = ahead.submit(read)
                if not self._store(held, chunk):
                    return
                if self.stopping.is_set():
                    break
        self._put_back(held, timedelta())

    def _store(self, held: FilesClaim, chunk: "_Chunk") -> int | None:
        earlier = self._earlier.setdefault(held.batch_id, Earlier())
        with self.services.store.transaction() as session:
            num_left = batch_files.add_requests(
                session,
                held,
                chunk.requests,
                read_offset=chunk.read_offset,
                shard_size=self.services.settings.shard_size,
                lease=LEASE,
                earlier=earlier,
            )
        if not num_left:
            del self._earlier[held.batch_id]
        while len(self._earlier) > MAX_BATCHES_REMEMBERED:
            self._earlier.popitem(last=False)
        return num_left

    def _lines(
        self, splitter: LineSplitter, file: FileView, start: int
    ) -> Iterator[tuple[int, bytes | LineTooLongError]]:
        for piece in self.services.blobs.read(file.sha256, start, file.num_bytes):
            yield from splitter.feed(piece)
        yield from splitter.close()

    def _errors(self, held: FilesClaim, file: FileView, translate: Translator) -> list[LineError]:
        """Check the file again, with this batch's endpoint and today's model; return its errors."""
        errors: list[LineError] = []
        for number, text in self._lines(LineSplitter(self.services.settings.max_line_bytes), file, 0):
            try:
                line = read_line(text)
                _check_endpoint(line, held.endpoint)
                translate(line)
            except WrongLineError as error:
                errors.append(error.at(number))
                if len(errors) == MAX_ERRORS:
                    break
        return errors

    def _refuse_missing(self, held: FilesClaim) -> None:
        message = f"the input file {held.input_file_id} was deleted"
        self._refuse(held, [LineError(code="file_not_found", message=message, param="input_file_id")])

    def _refuse(self, held: FilesClaim, errors: list[LineError]) -> None:
        with self.services.store.transaction() as session:
            batch_files.stop_reading(session, held, [error.model_dump() for error in errors])

    def _put_back(self, held: FilesClaim, after: timedelta) -> None:
        with self.services.store.transaction() as session:
            batch_files.put_back(session, held, after=after)


@dataclass(frozen=True, slots=True)
class _Chunk:
    """The requests of some lines, and the offset of the byte after these lines."""

    requests: Sequence[NewRequest]
    read_offset: int


def _check_endpoint(line: Line, endpoint: str) -> None:
    if line.url != endpoint:
        message = f"url: must be the batch's endpoint {endpoint}, but is {line.url[:100]}"
        raise WrongLineError("mismatched_endpoint", message, "url")
