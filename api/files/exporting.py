"""Writes the results of an ended batch into a customer's bucket, in the order of its requests."""

import sys
from collections.abc import Callable, Iterator
from contextlib import closing

from api import json_lines
from api.batches import service
from api.batches.following import columns_of, to_row
from api.batches.service import Reading
from api.buckets import objects
from api.buckets.locations import Place
from api.dependencies import Services
from api.errors import InvalidInputError
from api.files.intake import Spool
from api.tables import has_parquet, open_table
from worker.store.files.batch_files import FilesClaim
from worker.store.requests import result_views
from worker.store.requests.result_views import ResultView

PARAM = "output_uri"
FORMS = {".jsonl": "jsonl", ".csv": "csv", ".parquet": "parquet"}
PAGE = 1000
READING = Reading(in_input_order=True, with_requests=True)


def form_of(place: Place) -> str:
    """Return the form of the object, by its suffix; raises InvalidInputError for another."""
    form = next((form for suffix, form in FORMS.items() if place.name.endswith(suffix)), None)
    if form is None:
        message = f"{PARAM}: must end with {', '.join(FORMS)}, which says how results are written"
        raise InvalidInputError(message, param=PARAM)
    if form == "parquet" and not has_parquet():
        message = f"{PARAM}: this server cannot write Parquet; its operator can install headrace[parquet]"
        raise InvalidInputError(message, param=PARAM)
    return form


def export(
    services: Services, held: FilesClaim, place: Place, to_line: Callable[[ResultView], object]
) -> None:
    """Write every result of a batch as one object, which is made on the disk first.

    Raises:
        BucketError: the bucket refuses the object, or does not answer.
        StorageFullError: the disk has no room to make it.

    """
    form = form_of(place)
    with closing(Spool(services.spool, sys.maxsize)) as spool:
        for piece in _lines(services, held, to_line) if form == "jsonl" else _table(services, held, form):
            spool.write(piece)
        spool.flush()
        objects.write(place, spool.path)


def _lines(services: Services, held: FilesClaim, to_line: Callable[[ResultView], object]) -> Iterator[bytes]:
    after, is_last = 0, False
    while not is_last:
        with services.store.transaction() as session:
            found = result_views.page_of_input(session, held.batch_id, after=after, limit=PAGE)
        yield b"".join(json_lines.dumps(to_line(one)).encode() + b"\n" for one in found)
        is_last = len(found) < PAGE
        after = found[-1].position + 1 if found else after


def _table(services: Services, held: FilesClaim, form: str) -> Iterator[bytes]:
    table, reading, has_more = open_table(form, columns_of(READING)), READING, True
    while has_more:
        page = service.page(services, held.batch_id, reading, limit=PAGE)
        yield table.write([to_row(result) for result in page.data])
        reading, has_more = reading.after_page(page.next), page.has_more
    yield table.close()
