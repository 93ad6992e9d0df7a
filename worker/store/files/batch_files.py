"""Track the files of a Batch: its Requests are read from one, its Results are written to two.

Both happen under a lease with a fence, as for shards. Lock order: the batch, then its row here.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

from sqlalchemy import ColumnElement, func, insert, select, update
from sqlalchemy.orm import Session

from worker.contract.models import Model
from worker.contract.states import LIVE_STATUSES, BatchStatus, FilesStage, Lane
from worker.store.batches import batches, journal, placing, starts, stop_rules, wrong_requests
from worker.store.database.notify import wake_dispatcher, wake_files
from worker.store.database.session import tenant_of
from worker.store.requests import batch_models, copies, models
from worker.store.requests.earlier import Earlier
from worker.store.requests.placement import digest_of, priority_of
from worker.store.requests.requests import NewRequest
from worker.store.rows.batches import BatchModelRow, BatchRow
from worker.store.rows.files import BatchFilesRow
from worker.store.rows.requests import RequestRow
from worker.store.rows.views import view_of
from worker.store.tenants import quotas
from worker.store.tenants.quotas import Demand
from worker.values.caching import CacheMode
from worker.values.results import RequestError
from worker.values.sampling import SamplingParams

# Estimate for a quota of tokens: nobody has counted the tokens of a file.
BYTES_PER_TOKEN = 4
# After this time a client that waits for a file to be read is told that no process reads it.
READER_COMES_WITHIN = timedelta(seconds=5)


@dataclass(frozen=True, slots=True)
class NewFileBatch:
    """A batch to be created, whose requests are the lines of a file."""

    endpoint: str
    input_file_id: str
    num_lines: int
    num_bytes: int
    completion_window: str
    window: timedelta
    name: str | None
    metadata: dict[str, Any]
    callback_url: str | None
    priority: int
    output_lifetime: timedelta | None
    cache: CacheMode = CacheMode.OFF
    cache_similarity: float | None = None
    cache_ttl_seconds: float | None = None
    max_failed: int | None = None
    max_total_tokens: int | None = None
    model: Model | None = None  # of lines that name none; None: any
    models: Sequence[Model] = ()  # that its lines name, if they name several
    start_after: datetime | None = None  # None: at once
    input_uri: str | None = None  # where the file came from, if not from an upload
    input_etag: str | None = None
    output_uri: str | None = None  # where the results go too


@dataclass(frozen=True, slots=True)
class FilesClaim:
    """Claim on the files of a batch. Its fence is valid until somebody claims them again."""

    batch_id: str
    tenant_id: str
    fence: int
    endpoint: str
    input_file_id: str
    read_offset: int
    read_lines: int
    output_lifetime: timedelta | None
    output_uri: str | None
    output_tries: int  # to write there, that failed
    model_fingerprint: str | None = None  # None: its lines name several models, or any may run them


@dataclass(frozen=True, slots=True)
class WrittenFiles:
    """Ids of the files that hold a batch's results; None: it has no results of that kind."""

    output_file_id: str | None
    error_file_id: str | None
    output_error: str | None = None  # why they are not where the customer wanted them


def submit(session: Session, new: NewFileBatch) -> str:
    """Insert a batch whose requests are still lines; return its id. The caller commits.

    Raises:
        QuotaExceededError: its tenant's quotas have no room for it now.

    """
    batch_id = f"batch_{uuid4().hex}"
    quotas.check(session, Demand(new.num_lines, new.num_bytes // BYTES_PER_TOKEN, new.num_bytes))
    session.execute(
        insert(BatchRow).values(
            id=batch_id,
            tenant_id=tenant_of(session),
            stored_bytes=new.num_bytes,
            status=BatchStatus.PENDING,
            params=SamplingParams().to_json(),
            name=new.name,
            metadata_=new.metadata,
            priority=new.priority,
            callback_url=new.callback_url,
            input_file_id=new.input_file_id,
            num_unread=new.num_lines,
            num_requests=new.num_lines,
            num_prompt_tokens=0,
            max_output_tokens=0,
            cache=new.cache,
            cache_similarity=new.cache_similarity if new.cache is CacheMode.SEMANTIC else None,
            cache_ttl_seconds=new.cache_ttl_seconds,
            max_failed=new.max_failed,
            max_total_tokens=new.max_total_tokens,
            is_mixed=bool(new.models),
            expires_at=starts.end_of_window(new.start_after, new.window),
            **models.columns_of(new.model),
            **starts.columns_of(new.start_after),
        )
    )
    batch_models.name(session, batch_id, new.models)
    lifetime = new.output_lifetime
    session.execute(
        insert(BatchFilesRow).values(
            batch_id=batch_id,
            stage=FilesStage.READING,
            endpoint=new.endpoint,
            input_file_id=new.input_file_id,
            completion_window=new.completion_window,
            input_uri=new.input_uri,
            input_etag=new.input_etag,
            output_uri=new.output_uri and new.output_uri.replace("{batch_id}", batch_id),
            output_lifetime_seconds=None if lifetime is None else int(lifetime.total_seconds()),
        )
    )
    wake_files(session)
    file_id = new.input_file_id
    journal.accepted(
        session, batch_id, Lane.BATCH, new.num_lines, new.priority, model=new.model, input_file_id=file_id
    )
    return batch_id


def find_same(session: Session, new: NewFileBatch, *, within: timedelta) -> str | None:
    """Return the batch that the same submission made within this time, or None.

    Locks the submission until the transaction ends, so the second of two at once waits for the first.
    """
    if new.input_uri is None:
        has_input = BatchFilesRow.input_file_id == new.input_file_id
    else:  # each time it is read into another file
        has_input = BatchFilesRow.input_uri == new.input_uri
    same = f"{new.endpoint} {new.input_uri or new.input_file_id} {new.completion_window}"
    session.execute(select(func.pg_advisory_xact_lock(func.hashtextextended(same, 0))))
    return session.scalar(
        select(BatchFilesRow.batch_id)
        .join(BatchRow, BatchRow.id == BatchFilesRow.batch_id)
        .where(
            has_input,
            BatchFilesRow.endpoint == new.endpoint,
            BatchFilesRow.completion_window == new.completion_window,
            BatchRow.name.is_not_distinct_from(new.name),
            BatchRow.metadata_ == new.metadata,
            BatchRow.retry_of.is_(None),
            BatchRow.created_at > func.now() - within,
        )
        .order_by(BatchRow.created_at.desc())
        .limit(1)
    )


def claim_to_read(session: Session, *, lease: timedelta, models: Sequence[Model] = ()) -> FilesClaim | None:
    """Claim the batch whose input has waited longest to be read; None: there is none.

    Its lines become requests to models: a batch for another than these is left to its own process.
    """
    known = [model.fingerprint for model in models]
    others = select(BatchRow.id).where(
        BatchRow.id == BatchFilesRow.batch_id,
        BatchRow.model_fingerprint.not_in(known),
        BatchRow.model_fingerprint.is_not(None),
    )
    beside = select(BatchModelRow.batch_id).where(
        BatchModelRow.batch_id == BatchFilesRow.batch_id, BatchModelRow.model_fingerprint.not_in(known)
    )
    is_ours = ~others.exists() & ~beside.exists()
    return _claim(session, (BatchFilesRow.stage == FilesStage.READING) & is_ours, lease)


def claim_to_write(session: Session, *, lease: timedelta) -> FilesClaim | None:
    """Claim a batch that has ended and whose files must be written; None: there is none."""
    has_ended = select(BatchRow.id).where(
        BatchRow.id == BatchFilesRow.batch_id, BatchRow.status.not_in(LIVE_STATUSES)
    )
    is_running = BatchFilesRow.stage == FilesStage.RUNNING
    return _claim(session, is_running & has_ended.exists(), lease)


def has_no_reader(session: Session, batch_id: str) -> bool:
    """Return whether a batch's input has waited to be read for longer than READER_COMES_WITHIN."""
    is_left = (BatchFilesRow.batch_id == batch_id, BatchFilesRow.due_at < func.now() - READER_COMES_WITHIN)
    found = select(BatchFilesRow.batch_id).where(*is_left, BatchFilesRow.stage == FilesStage.READING)
    return session.scalar(found) is not None


def renew(session: Session, held: FilesClaim, *, lease: timedelta) -> bool:
    """Extend a claim; return False if it is lost."""
    return _move(session, held, due_at=func.now() + lease)


def put_back(session: Session, held: FilesClaim, *, after: timedelta = timedelta()) -> None:
    """End a claim, and let the files be claimed again after a while."""
    _give_up(session, held, due_at=func.now() + after)


def output_failed(session: Session, held: FilesClaim, problem: str, *, after: timedelta) -> None:
    """Record a failed try to write to the customer's bucket, and end the claim until the next."""
    tries = held.output_tries + 1
    _give_up(session, held, output_tries=tries, output_error=problem, due_at=func.now() + after)


def add_requests(
    session: Session,
    held: FilesClaim,
    given: Sequence[NewRequest],
    *,
    read_offset: int,
    read_lines: int = 0,
    shard_size: int,
    lease: timedelta,
    earlier: Earlier | None = None,
) -> int | None:
    """Store the next lines of a batch's input as requests; return how many lines are left.

    None: the claim is lost. The requests of a batch that is not mixed are all for its own model. A request
    with an error fails at once. Requests identical to one that `earlier` knows are not run again. After the
    last line the batch can complete, or ends now if it was cancelled.
    """
    batch = batches.lock(session, held.batch_id)
    progress = {"read_offset": read_offset, "read_lines": read_lines, "due_at": func.now() + lease}
    if batch is None or not _move(session, held, **progress):
        return None
    defaults = SamplingParams.from_json(batch.params)
    digests = [digest_of(request, defaults) for request in given]
    priorities = [priority_of(request, batch.priority) for request in given]
    others = [batch_models.other_model(request, batch.model_fingerprint) for request in given]
    earlier = earlier or Earlier()
    known = earlier.join(session, digests, priorities, others)
    joined = wrong_requests.apart(session, batch, given, known)
    first_position = batch.num_requests - batch.num_unread
    shard_ids = placing.add_shards(
        session,
        batch.id,
        given,
        batch_params=defaults,
        shard_size=shard_size,
        priority=batch.priority,
        expires_at=batch.expires_at,
        model_fingerprint=batch.model_fingerprint,
        first_position=first_position,
        digests=digests,
        joined=joined,
    )
    batch_models.count_read(session, batch, given, defaults)
    for digest, shard_id, model in zip(digests, shard_ids, others, strict=True):
        earlier.remember(digest, shard_id, model)
    those = zip(digests, joined, strict=True)
    later = {digest for digest, shard_id in those if digest is not None and shard_id is not None}
    if later:
        copies.answer_later_ones(session, batch, set(shard_ids), later)
    if wrong_requests.fail(session, batch, given, first_position):
        stop_rules.apply(session, batch)
    if not batch.num_unread:
        journal.changed(session, "batch read from its file", batch, file=held.input_file_id)
        _give_up(session, held, stage=FilesStage.RUNNING, read_at=func.now(), due_at=func.now())
        session.flush()
        batches.settle(session, batch)
    wake_dispatcher(session)
    return batch.num_unread


def known_custom_ids(session: Session, batch_id: str, custom_ids: Collection[str]) -> set[str]:
    """Return those of these ids that requests of a batch have."""
    if not custom_ids:
        return set()
    is_known = (RequestRow.batch_id == batch_id, RequestRow.custom_id.in_(custom_ids))
    return set(session.scalars(select(RequestRow.custom_id).where(*is_known)))


def stop_reading(session: Session, held: FilesClaim, errors: list[dict[str, Any]]) -> None:
    """End a batch whose input cannot be run, with its errors; cut off what runs of it already."""
    batch = batches.lock(session, held.batch_id)
    if batch is None:
        return
    stage = FilesStage.DONE if batch.num_unread == batch.num_requests else FilesStage.RUNNING
    if not _give_up(session, held, stage=stage, errors=errors, read_at=func.now(), due_at=func.now()):
        return
    error = _to_error(errors[0])
    if stage is FilesStage.DONE:
        batches.fail(session, batch, error)
        return
    batch.num_requests -= batch.num_unread
    batch.num_unread = 0
    if batches.is_stopping(session, batch):
        session.flush()
    else:
        batches.stop(session, batch, error)
    batches.settle(session, batch)
    wake_dispatcher(session)


def _to_error(first: dict[str, Any]) -> RequestError:
    """Convert the first of a file's errors to the error of its batch."""
    place = "" if first.get("line") is None else f"line {first['line']}: "
    return RequestError(first["code"], f"{place}{first['message']}")


def finish(session: Session, held: FilesClaim, written: WrittenFiles) -> bool:
    """Record the files with an ended batch's results; return False if the claim is lost.

    Only now the batch has ended for its customer, so the WebhookEvent is written here.
    """
    batch = batches.lock(session, held.batch_id)
    if batch is None or not _move(
        session,
        held,
        stage=FilesStage.DONE,
        output_file_id=written.output_file_id,
        error_file_id=written.error_file_id,
        output_error=written.output_error,
        written_at=func.now(),
    ):
        return False
    files = {"output_file": written.output_file_id, "error_file": written.error_file_id}
    journal.changed(session, "batch written to its files", batch, **files)
    outside = None
    if held.output_uri is not None:
        outside = {"output_uri": held.output_uri, "output_error": written.output_error}
    batches.report_end(session, batch, files, outside)
    return True


def _claim(session: Session, is_wanted: ColumnElement[bool], lease: timedelta) -> FilesClaim | None:
    due = (
        select(BatchFilesRow.batch_id)
        .where(is_wanted, BatchFilesRow.due_at <= func.now())
        .order_by(BatchFilesRow.due_at)
        .limit(1)
        .with_for_update(skip_locked=True, of=BatchFilesRow)
        .scalar_subquery()
    )
    row = session.scalar(
        update(BatchFilesRow)
        .where(BatchFilesRow.batch_id == due)
        .values(fence=BatchFilesRow.fence + 1, due_at=func.now() + lease)
        .returning(BatchFilesRow)
    )
    if row is None:
        return None
    seconds = row.output_lifetime_seconds
    columns = (BatchRow.tenant_id, BatchRow.model_fingerprint, BatchRow.is_mixed)
    batch = session.execute(select(*columns).where(BatchRow.id == row.batch_id)).one()
    return view_of(
        FilesClaim,
        row,
        tenant_id=batch.tenant_id,
        output_lifetime=None if seconds is None else timedelta(seconds=seconds),
        model_fingerprint=None if batch.is_mixed else batch.model_fingerprint,
    )


def _give_up(session: Session, held: FilesClaim, **changes: Any) -> bool:
    """Change a held row and end the claim, so that a renewal under way cannot take the files back."""
    return _move(session, held, fence=held.fence + 1, **changes)


def _move(session: Session, held: FilesClaim, **changes: Any) -> bool:
    """Change a held row; return False, with nothing changed, if the claim is lost."""
    moved = session.execute(
        update(BatchFilesRow)
        .where(BatchFilesRow.batch_id == held.batch_id, BatchFilesRow.fence == held.fence)
        .values(**changes)
        .returning(BatchFilesRow.batch_id)
        .execution_options(synchronize_session=False)
    )
    return moved.one_or_none() is not None
