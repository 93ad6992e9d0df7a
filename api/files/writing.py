"""Writes the results of ended batches into files, in order of completion, and to buckets of customers."""

import logging
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from threading import Event
from typing import Any

from sqlalchemy.orm import Session

from api import json_lines
from api.batches.tool_turns import tool_turns_of
from api.blobs.store import StorageError
from api.buckets.objects import BucketError
from api.dependencies import Services
from api.errors import ApiError, StorageFullError
from api.files import exporting, service
from api.files.endpoints import to_body
from api.files.intake import Spool
from api.generate.outputs import failure
from api.inputs.checkpoint import Checkpoint
from api.openai.bodies import Endpoint
from worker.store.database.renewing import renewing
from worker.store.files import batch_files, files
from worker.store.files.batch_files import FilesClaim, WrittenFiles
from worker.store.files.files import NewFile
from worker.store.requests import result_views
from worker.store.requests.result_views import ResultView
from worker.values.outcomes import Outcome
from worker.values.results import TIMEOUT

logger = logging.getLogger(__name__)

LEASE = timedelta(seconds=6)
RENEW_SECONDS = 1.5
LONGEST_SECONDS = 3600.0
PAGE = 1000
RETRY_AFTER = timedelta(seconds=5)
# Of tries to write to a customer's bucket, which go on for about an hour.
MAX_TRIES = 18
FIRST_PAUSE, LONGEST_PAUSE = 5, 300  # seconds


@dataclass(frozen=True, slots=True)
class ResultWriter:
    """Writes the files of ended batches, one batch after the other."""

    services: Services
    stopping: Event

    def turn(self) -> bool:
        """Write a batch's files; return False if no batch waits for that."""
        with self.services.store.transaction() as session:
            held = batch_files.claim_to_write(session, lease=LEASE)
        if held is None:
            return False
        own = replace(self.services, store=self.services.store.of_tenant(held.tenant_id))
        replace(self, services=own).work_on(held)
        return True

    def work_on(self, held: FilesClaim) -> None:
        """Write a claimed batch's files, as its tenant."""
        output = error = None
        try:
            output, error = self._spool(), self._spool()
            with renewing(
                self.services.store,
                lambda session: batch_files.renew(session, held, lease=LEASE),
                every_seconds=RENEW_SECONDS,
                at_most_seconds=LONGEST_SECONDS,
            ):
                if self._write(held, output, error):
                    self._finish(held, output, error, self._export(held))
        except BucketError as problem:
            logger.warning("the results of %s are not in their bucket yet: %s", held.batch_id, problem)
            after = timedelta(seconds=min(LONGEST_PAUSE, FIRST_PAUSE * 2**held.output_tries))
            with self.services.store.transaction() as session:
                batch_files.output_failed(session, held, str(problem), after=after)
        except (StorageFullError, StorageError) as problem:
            logger.warning("the files of %s are not written yet: %s", held.batch_id, problem)
            with self.services.store.transaction() as session:
                batch_files.put_back(session, held, after=RETRY_AFTER)
        finally:
            for spool in (output, error):
                if spool is not None:
                    spool.close()

    def _spool(self) -> Spool:
        return Spool(self.services.spool, sys.maxsize)

    def _write(self, held: FilesClaim, output: Spool, error: Spool) -> bool:
        """Write every result; return False if the claim is lost or the process must stop."""
        for result in self._results(held):
            line = self._to_line(held, result)
            spool = output if result.outcome is Outcome.COMPLETED else error
            spool.write(json_lines.dumps(line).encode() + b"\n")
        with self.services.store.transaction() as session:
            if not self.stopping.is_set():
                return batch_files.renew(session, held, lease=LEASE)
            batch_files.put_back(session, held)
            return False

    def _to_line(self, held: FilesClaim, result: ResultView) -> dict[str, Any]:
        endpoint = Endpoint(result.endpoint or held.endpoint)
        return to_line(self.services.checkpoint, endpoint, held.batch_id, result)

    def _export(self, held: FilesClaim) -> str | None:
        """Write the results to the customer's bucket, if it is asked for; return why that failed for good.

        Raises:
            BucketError: it has failed, and is to be tried again.

        """
        if held.output_uri is None:
            return None
        try:
            place = self.services.buckets.find(
                held.output_uri, held.tenant_id, to_write=True, param=exporting.PARAM
            )
            exporting.export(self.services, held, place, partial(self._to_line, held))
        except StorageFullError:
            raise
        except (ApiError, BucketError) as error:
            if held.output_tries + 1 < MAX_TRIES:
                raise BucketError(str(error)) from error
            return str(error)
        return None

    def _results(self, held: FilesClaim) -> Iterator[ResultView]:
        after = 0
        while not self.stopping.is_set():
            with self.services.store.transaction() as session:
                if not batch_files.renew(session, held, lease=LEASE):
                    return
                found = result_views.page(session, held.batch_id, after=after, limit=PAGE)
            yield from found
            if len(found) < PAGE:
                return
            after = found[-1].sequence

    def _finish(self, held: FilesClaim, output: Spool, error: Spool, output_error: str | None) -> None:
        for spool in (output, error):
            if spool.num_bytes:
                spool.flush()
                self.services.blobs.keep(spool.path, spool.sha256)
        with self.services.store.transaction() as session:
            written = WrittenFiles(
                self._add(session, held, output, "output"),
                self._add(session, held, error, "error"),
                output_error,
            )
            if not batch_files.finish(session, held, written):
                session.rollback()

    def _add(self, session: Session, held: FilesClaim, spool: Spool, kind: str) -> str | None:
        if not spool.num_bytes:
            return None
        service.name_blob(self.services, session, spool.path, spool.sha256)
        new = NewFile(
            purpose=files.BATCH_OUTPUT,
            filename=f"{held.batch_id}_{kind}.jsonl",
            sha256=spool.sha256,
            num_bytes=spool.num_bytes,
            lifetime=held.output_lifetime,
        )
        return files.add(session, new).id


def to_line(checkpoint: Checkpoint, endpoint: Endpoint, batch_id: str, result: ResultView) -> dict[str, Any]:
    """Return a result as a line of the output file, or of the error file. Its ids never change."""
    name = f"{batch_id.removeprefix('batch_')}-{result.position}"
    line = {"id": f"batch_req_{name}", "custom_id": result.custom_id, "response": None, "error": None}
    if result.outcome is Outcome.CANCELLED or result.error_code == TIMEOUT.code:
        code = "request_timeout" if result.error_code == TIMEOUT.code else result.error_code  # as OpenAI's
        return line | {"error": {"code": code, "message": result.error_message}} | tool_turns_of(result)
    failed = failure(result)
    if failed is None:
        status, body = 200, to_body(checkpoint, endpoint, result, batch_id=batch_id)
    else:
        detail = {"message": failed.message, "type": failed.type, "param": failed.param, "code": failed.code}
        status, body = int(failed.status), {"error": detail} | tool_turns_of(result)
    return line | {"response": {"status_code": status, "request_id": f"req_{name}", "body": body}}
