"""Creates, reads, lists and cancels batches made from files. Each function is one transaction."""

from dataclasses import replace
from datetime import timedelta

from sqlalchemy.orm import Session

from api.batches.caching import choose_cache
from api.batches.experiments import ExperimentFields, check_new, nothing_to_compare, several_models
from api.batches.operators import note
from api.batches.schemas import parse_window
from api.batches.starts import to_instant
from api.buckets.locations import Place
from api.dependencies import IdempotencyKey, Services
from api.errors import InvalidInputError, KeyReusedError, NotFoundError
from api.file_batches.schemas import FileBatch, FileBatchSubmission, to_file_batch
from api.files.exporting import form_of
from api.files.fetching import Fetched, fetch
from api.files.service import models_of
from api.inputs.cursors import cut
from api.inputs.targets import check_url
from api.openai.bodies import Endpoint
from api.table_lines import LineForm, TableError, Template
from worker.contract.access import DEFAULT_TENANT
from worker.contract.states import ExperimentMode
from worker.store.batches import batches, idempotency
from worker.store.batches.labels import Labels
from worker.store.experiments import experiments
from worker.store.files import batch_files, file_batch_views, files
from worker.store.files.batch_files import NewFileBatch
from worker.values.caching import CacheMode

# A client that lost the answer retries within seconds, and counts its retries in a header.
RETRIES_WITHIN = timedelta(minutes=10)


def create(
    services: Services, submission: FileBatchSubmission, key: IdempotencyKey | None, *, is_retry: bool
) -> FileBatch:
    """Store a batch whose lines are read later; answer a retry with the batch that it made before.

    Raises:
        NotFoundError: no such file.
        InvalidInputError: the file, or the object, is not the input of a batch, or there are no buckets, or
            the other model of its experiment cannot run its lines.
        KeyReusedError: the idempotency key was used for another body.
        PermissionDeniedError: the tenant may not use the semantic cache, or a bucket.
        StorageFullError: the bucket does not answer.
        QuotaExceededError: the batch is over a quota of the tenant.

    """
    if submission.callback_url is not None:
        check_url(services.settings, submission.callback_url, param="callback_url")
    start_after = to_instant(services, submission.start_after)
    if submission.output_uri is not None:
        form_of(_place(services, submission.output_uri, to_write=True, param="output_uri"))
    fetched = None
    if submission.input_uri is not None and not _is_known(services, key):
        place = _place(services, submission.input_uri, to_write=False, param="input_uri")
        fetched = fetch(services, place, _to_form(services, submission))
    with services.store.transaction() as session:
        batch_id = None if key is None else _find(session, key)
        if batch_id is None:
            cache = choose_cache(services, session, submission.cache)
            new = _to_new(services, session, submission, fetched, cache)
            new = replace(new, start_after=start_after)
            # Every submission takes this lock, so that a retry waits for the one with the lost answer.
            earlier = batch_files.find_same(session, new, within=RETRIES_WITHIN)
            batch_id = earlier if is_retry and key is None else None
            if batch_id is None:
                batch_id = batch_files.submit(session, new)
                if submission.experiment is not None:
                    _announce(services, session, batch_id, new, submission.experiment)
            if key is not None:
                idempotency.remember(session, key.key, key.fingerprint, batch_id)
        return _answer(session, batch_id)


def _announce(
    services: Services, session: Session, batch_id: str, new: NewFileBatch, given: ExperimentFields
) -> None:
    """Store the experiment on a batch whose lines are read later; nobody has counted their tokens yet."""
    if new.models:
        raise several_models()
    model = new.model or services.checkpoint.model
    experiment = check_new(session, services, given, model.tokenizer, longest=0)
    file = files.get(session, new.input_file_id)
    is_of_vectors = file is not None and file.endpoint == Endpoint.EMBEDDINGS
    if is_of_vectors or (given.mode is ExperimentMode.AB and new.num_lines < 2):
        raise nothing_to_compare()
    experiments.announce(session, batch_id, experiment)


def get(services: Services, batch_id: str) -> FileBatch:
    """Return the current state of a batch.

    Raises:
        NotFoundError: no such batch.

    """
    with services.store.look() as session:
        return _answer(session, batch_id)


def cancel(services: Services, batch_id: str) -> FileBatch:
    """Ask a batch to stop; an ended batch stays as it is.

    Raises:
        NotFoundError: no such batch.

    """
    with services.store.transaction() as session:
        if file_batch_views.get(session, batch_id) is not None:
            batches.cancel(session, batch_id)
            note(services, session, "batch.cancel", batch_id)
        return _answer(session, batch_id)


def page(
    services: Services, *, after: str | None, limit: int, labels: Labels
) -> tuple[list[FileBatch], bool]:
    """Return a page of batches, newest first, and whether there are more; raises UnknownCursorError."""
    with services.store.transaction() as session:
        found = file_batch_views.page(session, after=after, limit=limit + 1, labels=labels)
    return cut([to_file_batch(view) for view in found], limit)


def _answer(session: Session, batch_id: str) -> FileBatch:
    view = file_batch_views.get(session, batch_id)
    if view is None:
        raise NotFoundError(f"There is no batch {batch_id}.", param="batch_id")
    return to_file_batch(view)


def _place(services: Services, uri: str, *, to_write: bool, param: str) -> Place:
    return services.buckets.find(
        uri, services.store.tenant_id or DEFAULT_TENANT, to_write=to_write, param=param
    )


def _is_known(services: Services, key: IdempotencyKey | None) -> bool:
    """Return whether this key has made a batch, so that its input is not read again."""
    if key is None:
        return False
    with services.store.transaction() as session:
        return _find(session, key) is not None


def _to_form(services: Services, submission: FileBatchSubmission) -> LineForm | None:
    """Return how the rows of a table become lines; None: they are lines already.

    Raises:
        InvalidInputError: the template is wrong, or the endpoint takes no prompts.

    """
    table = submission.table
    if table is None:
        return None
    if submission.endpoint not in {"/v1/chat/completions", "/v1/completions"}:
        message = "table: goes with the endpoints /v1/chat/completions and /v1/completions"
        raise InvalidInputError(message, param="table")
    is_chat = submission.endpoint == "/v1/chat/completions"
    if table.system is not None and not is_chat:
        raise InvalidInputError("table.system: goes with /v1/chat/completions", param="table.system")
    try:
        return LineForm(
            template=Template(table.prompt),
            body={"model": services.checkpoint.name} | table.body,
            custom_id=table.custom_id,
            keep=None if table.keep is None else tuple(table.keep),
            is_chat=is_chat,
            system=table.system,
            reorder_fields=table.reorder_fields,
        )
    except TableError as error:
        raise InvalidInputError(f"table.prompt: {error}", param="table.prompt") from error


def _find(session: Session, key: IdempotencyKey) -> str | None:
    try:
        return idempotency.find(session, key.key, key.fingerprint)
    except idempotency.FingerprintMismatchError as error:
        raise KeyReusedError(
            "This Idempotency-Key was used for another body. Choose a new key.", param="Idempotency-Key"
        ) from error


def _to_new(
    services: Services,
    session: Session,
    submission: FileBatchSubmission,
    fetched: Fetched | None,
    cache: CacheMode,
) -> NewFileBatch:
    file_id = submission.input_file_id or ("" if fetched is None else fetched.file.id)
    file = files.get(session, file_id)
    if file is None:
        raise NotFoundError(f"There is no file {file_id}.", param="input_file_id")
    if file.num_lines is None:
        raise InvalidInputError(
            f"input_file_id: the purpose of {file.id} must be batch, but is {file.purpose}",
            param="input_file_id",
        )
    lifetime = submission.output_expires_after
    default = services.checkpoint.model
    models = models_of(services, file) or [default]
    return NewFileBatch(
        endpoint=submission.endpoint,
        input_file_id=file.id,
        num_lines=file.num_lines,
        num_bytes=file.num_bytes,
        completion_window=submission.completion_window,
        window=parse_window(submission.completion_window),
        name=submission.name or (submission.metadata or {}).get("name") or None,
        metadata=dict(submission.metadata or {}),
        callback_url=submission.callback_url,
        priority=submission.priority,
        output_lifetime=None if lifetime is None else timedelta(seconds=lifetime.seconds),
        cache=cache,
        cache_similarity=submission.cache_similarity,
        cache_ttl_seconds=submission.cache_ttl_seconds,
        max_failed=submission.max_failed,
        max_total_tokens=submission.max_total_tokens,
        model=default if default in models else models[0],
        models=models if len(models) > 1 else (),
        input_uri=submission.input_uri,
        input_etag=None if fetched is None else fetched.etag,
        output_uri=submission.output_uri,
    )
