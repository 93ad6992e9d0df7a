"""Reads batches out of their input files: turns lines into stored requests, a Chunk per transaction.

Requests that begin alike go to the same shards within a Chunk, so Chunks grow: the first is small, so that
work starts at once.
"""

import logging
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import timedelta
from itertools import islice
from threading import Event
from typing import Any

from api.blobs.store import BlobError, MissingBlobError
from api.dependencies import Services
from api.errors import LineError
from api.files.lines import (
    MAX_ERRORS,
    Line,
    LineSplitter,
    LineTooLongError,
    RepeatedIdError,
    WrongLineError,
    custom_id_of,
    read_line,
)
from api.files.service import models_of
from api.files.translator import Translator
from api.inputs.checkpoint import Checkpoint
from api.inputs.tool_loops import ToolLimits
from worker.forecasts.work import of_requests
from worker.store.batches.batches import NewBatch
from worker.store.database.renewing import renewing
from worker.store.experiments import experiments
from worker.store.files import batch_files, files
from worker.store.files.batch_files import FilesClaim
from worker.store.files.files import FileView
from worker.store.requests.earlier import Earlier
from worker.store.requests.requests import NewRequest
from worker.values.results import RequestError
from worker.values.sampling import SamplingParams

logger = logging.getLogger(__name__)

LEASE = timedelta(seconds=6)
RENEW_SECONDS = 1.5
LONGEST_SECONDS = 3600.0
CHUNK_LINES = 2048  # in the first transaction; then as many as were read before it, within these limits:
MAX_CHUNK_LINES, MAX_CHUNK_BYTES = 16_384, 16 << 20
TURN_LINES = 32_768  # then the next batch gets a turn
RETRY_AFTER = timedelta(seconds=5)
BYTES_PER_TOKEN = 4  # of most texts and tokenizers
SAMPLED = 256  # requests of a Chunk by which the size of its shards is chosen, at most
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
            models = [one.model for one in self.services.checkpoint.served]
            held = batch_files.claim_to_read(session, lease=LEASE, models=models)
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
        config = self.services.settings
        translate = Translator(self._checkpoint_for(held), config.max_prompt_bytes, ToolLimits.of(config))
        if not self._was_checked(held, file) and (errors := self._errors(held, file, translate)):
            self._refuse(held, errors)
            return
        splitter = LineSplitter(self.services.settings.max_line_bytes, first=held.read_lines + 1)
        requests = (
            (number, self._to_request(held, file, translate, number, line))
            for number, line in self._lines(splitter, file, held.read_offset)
        )

        def read() -> _Chunk:
            most = max(CHUNK_LINES, min(splitter.number, MAX_CHUNK_LINES))
            until = splitter.offset + MAX_CHUNK_BYTES
            numbers, given = [], []
            for number, request in islice(requests, most):
                numbers.append(number)
                given.append(request)
                if splitter.offset >= until:
                    break
            return _Chunk(given, numbers, held.read_offset + splitter.offset, splitter.number)

        # Storing takes as long as reading, so the next lines are read while these are stored.
        with ThreadPoolExecutor(1) as ahead:
            coming = ahead.submit(read)
            is_last = False
            while not is_last:
                try:
                    chunk = coming.result()
                except WrongLineError as error:  # something has changed since the file was checked
                    self._refuse(held, [error.at(splitter.number)])
                    return
                is_last = not chunk.requests or chunk.read_lines - held.read_lines >= TURN_LINES
                if not is_last:
                    coming = ahead.submit(read)
                if not self._store(held, chunk, may_repeat=file.num_wrong_lines is not None):
                    return
                if self.stopping.is_set():
                    break
        self._put_back(held, timedelta())

    def _checkpoint_for(self, held: FilesClaim) -> Checkpoint:
        """Return what the lines of a batch are read with: all are for its model, unless it is mixed."""
        own = self.services.checkpoint.of(held.model_fingerprint)
        return self.services.checkpoint if own is None or held.model_fingerprint is None else own.alone()

    def _was_checked(self, held: FilesClaim, file: FileView) -> bool:
        """Return whether no line can be wrong for this batch, or each that is fails alone.

        The lines of a mixed file, which has no endpoint of its own, go each to the endpoint that it names.
        """
        if file.endpoint not in {None, held.endpoint}:
            return False
        if file.num_wrong_lines is not None:
            return True
        models = models_of(self.services, file)
        if models is None or held.model_fingerprint is None:
            return models is not None
        return [held.model_fingerprint] == [one.fingerprint for one in models]

    @staticmethod
    def _to_request(
        held: FilesClaim,
        file: FileView,
        translate: Translator,
        number: int,
        text: bytes | LineTooLongError,
    ) -> NewRequest:
        try:
            line = read_line(text)
            request = translate(line)
        except WrongLineError as error:
            if file.num_wrong_lines is None:
                raise
            return _to_wrong(custom_id_of(text), number, error)
        metadata = line.body.get("metadata")
        own: dict[str, Any] = {}  # seldom anything
        if line.url != held.endpoint:
            own["endpoint"] = line.url
        if isinstance(metadata, dict) and metadata:
            own["metadata"] = metadata
        if line.expected is not None:
            own["expected"] = line.expected
        return replace(request, **own) if own else request

    def _store(self, held: FilesClaim, chunk: "_Chunk", *, may_repeat: bool) -> int | None:
        earlier = self._earlier.setdefault(held.batch_id, Earlier())
        shard_size = self._shard_size(held, chunk.requests)
        with self.services.store.transaction() as session:
            given = chunk.requests
            if may_repeat:
                ids = {request.custom_id for request in given if request.custom_id is not None}
                known = batch_files.known_custom_ids(session, held.batch_id, ids)
                given = _without_repeats(given, chunk.numbers, known)
            num_left = batch_files.add_requests(
                session,
                held,
                given,
                read_offset=chunk.read_offset,
                read_lines=chunk.read_lines,
                shard_size=shard_size,
                lease=LEASE,
                earlier=earlier,
            )
            if num_left is not None:
                experiments.take_lines(session, held.batch_id, len(given), shard_size=shard_size)
        if not num_left:
            del self._earlier[held.batch_id]
        while len(self._earlier) > MAX_BATCHES_REMEMBERED:
            self._earlier.popitem(last=False)
        return num_left

    def _shard_size(self, held: FilesClaim, given: Sequence[NewRequest]) -> int:
        """Return how many of these requests a shard gets, by some of them.

        The tokens of their prompts are guessed from the bytes.
        """
        forecaster = self.services.read_forecaster(held.model_fingerprint)
        guessed = [
            replace(one, num_prompt_tokens=one.num_bytes // BYTES_PER_TOKEN)
            for one in given[:: len(given) // SAMPLED + 1]
            if one.error is None
        ]
        batch = NewBatch(SamplingParams(), guessed)
        return forecaster.shard_size_of(of_requests(batch, guessed, forecaster.lengths), is_whole=False)

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
                _check_endpoint(line, file, held.endpoint)
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
    """The requests of some lines, and what was read of the file with these lines."""

    requests: Sequence[NewRequest]
    numbers: Sequence[int]  # of the lines
    read_offset: int
    read_lines: int


def _to_wrong(custom_id: str | None, number: int, error: WrongLineError) -> NewRequest:
    """Return the request of a wrong line: it fails at once, with the number of its line."""
    told = error.at(number)
    problem = RequestError(told.code, f"line {number}: {told.message}")
    return NewRequest(prompt="", max_tokens=0, custom_id=custom_id, error=problem)


def _without_repeats(
    given: Sequence[NewRequest], numbers: Sequence[int], known: set[str]
) -> Sequence[NewRequest]:
    """Return the requests of lines; one whose custom_id an earlier request has is wrong, and has none."""
    found = []
    for number, request in zip(numbers, given, strict=True):
        custom_id = request.custom_id
        if custom_id is None or custom_id not in known:
            found.append(request)
        elif request.error is None:
            found.append(_to_wrong(None, number, RepeatedIdError(custom_id)))
        else:
            found.append(replace(request, custom_id=None))
        if custom_id is not None:
            known.add(custom_id)
    return found


def _check_endpoint(line: Line, file: FileView, endpoint: str) -> None:
    if file.endpoint is not None and line.url != endpoint:
        message = f"url: must be the batch's endpoint {endpoint}, but is {line.url[:100]}"
        raise WrongLineError("mismatched_endpoint", message, "url")
