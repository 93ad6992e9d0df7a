"""Submits, reads, lists and cancels batches. Each function is one transaction, or one page."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from api.batches.answers import to_answer, to_result
from api.batches.deadlines import check_deadline
from api.batches.experiments import start_experiment, to_experiment
from api.batches.operators import note
from api.batches.result_schemas import ResultPage
from api.batches.schemas import BatchAnswer, BatchPage, BatchStats, BatchSubmission
from api.batches.submission import to_batch
from api.batches.waiting import read_lines
from api.dependencies import IdempotencyKey, Services
from api.errors import KeyReusedError, NotFoundError
from api.figures import to_latencies, to_usage
from api.inputs.cursors import cut
from worker.contract.events import INLINE_OUTPUT_BYTES, INLINE_OUTPUTS
from worker.contract.states import BatchStatus
from worker.forecasts.forecaster import Forecast
from worker.forecasts.work import distinct
from worker.store.batches import batch_views, batches, idempotency
from worker.store.batches.batch_views import BatchView
from worker.store.batches.batches import NewBatch
from worker.store.batches.labels import Labels
from worker.store.counts import batch_counts, usage
from worker.store.experiments.experiments import NewExperiment
from worker.store.requests import attempts, batch_models, request_views, result_views
from worker.store.requests.placement import digest_of
from worker.store.webhooks import delivery_log
from worker.values.results import num_bytes

PAGE = 500


@dataclass(frozen=True, slots=True)
class Reading:
    """How a client reads results: from a cursor on, in an order, with their requests or without."""

    after: int = 0
    in_input_order: bool = False
    with_requests: bool = False

    def after_page(self, cursor: int) -> "Reading":
        """Return the reading that goes on at this cursor."""
        return replace(self, after=cursor)


def submit(services: Services, submission: BatchSubmission, key: IdempotencyKey | None) -> BatchView:
    """Check the whole submission, then store it in one transaction.

    Raises:
        InvalidInputError: a field is wrong; nothing was stored.
        KeyReusedError: the idempotency key was used for another body.

    """
    batch = to_batch(services, submission)
    experiment = to_experiment(services, batch, submission.experiment)
    return store(services, batch, key, experiment=experiment)


def store(
    services: Services,
    batch: NewBatch,
    key: IdempotencyKey | None,
    *,
    found_within: timedelta | None = None,
    experiment: NewExperiment | None = None,
) -> BatchView:
    """Store a batch and its experiment in one transaction; with a key that made one before, return that.

    With `found_within`, a batch that the key made longer ago does not count.

    Raises:
        InvalidInputError: its deadline cannot be met; nothing was stored.
        KeyReusedError: the idempotency key was used for another body.

    """
    digests = [digest_of(request, batch.params) for request in batch.requests]
    forecast = _forecast(services, batch, digests)
    shard_size = services.settings.shard_sizes[0] if forecast is None else forecast.shard_size
    if forecast is not None and batch.start_after is None:  # nobody knows what waits then
        batch = replace(batch, forecast_seconds=forecast.by_costs)
    with services.store.transaction() as session:
        batch_id = None
        if key is not None:
            try:
                batch_id = idempotency.find(session, key.key, key.fingerprint, within=found_within)
            except idempotency.FingerprintMismatchError as error:
                raise KeyReusedError(
                    "This Idempotency-Key was used for another body. Choose a new key.",
                    param="Idempotency-Key",
                ) from error
        if batch_id is None:
            check_deadline(session, batch, forecast)
            batch_id = batches.submit(session, batch, shard_size=shard_size, digests=digests)
            if experiment is not None:
                start_experiment(session, batch_id, experiment, shard_size=shard_size)
            if key is not None:
                idempotency.remember(session, key.key, key.fingerprint, batch_id)
        view = batch_views.get(session, batch_id)
    if view is None:
        raise NotFoundError(
            "The batch that this Idempotency-Key made was deleted. Choose a new key.", param="Idempotency-Key"
        )
    return view


def _forecast(services: Services, batch: NewBatch, digests: Sequence[bytes | None]) -> Forecast | None:
    """Return the forecast of the model that is done last; None if one of them has none."""
    found = []
    different = batch_models.by_model(distinct(batch, digests), batch.model)
    for model in batch_models.by_model(batch.requests, batch.model):
        forecaster = services.read_forecaster(None if model is None else model.fingerprint)
        found.append(forecaster.of_new(replace(batch, requests=different.get(model, []))))
    known = [forecast for forecast in found if forecast is not None]
    return max(known, key=lambda one: one.seconds.expected) if len(known) == len(found) else None


def answer(services: Services, batch_id: str, *, include_outputs: bool | None) -> BatchAnswer:
    """Return the current state of a batch; `include_outputs=None` includes the outputs of a small batch.

    Raises:
        NotFoundError: no such batch.

    """
    with services.store.look() as session:
        view = batch_views.get(session, batch_id)
        if view is None:
            raise NotFoundError(f"There is no batch {batch_id}.", param="batch_id")
        has_event = view.status.is_terminal and view.callback_url is not None
        delivery = delivery_log.delivery_of(session, batch_id) if has_event else None
        lines = read_lines(session, view)
        outputs = None
        is_small = view.num_requests <= INLINE_OUTPUTS and view.results_dropped_at is None
        if include_outputs is not False and is_small:
            outputs = result_views.outputs(session, batch_id)
    if include_outputs is None and outputs and sum(map(num_bytes, outputs)) > INLINE_OUTPUT_BYTES:
        outputs = None
    return to_answer(
        view,
        delivery,
        outputs,
        currency=services.settings.currency,
        lines=lines,
        forecasters=services.read_forecasters([view]),
    )


def cancel(services: Services, batch_id: str) -> None:
    """Ask a batch to stop.

    Raises:
        NotFoundError: no such batch.

    """
    with services.store.transaction() as session:
        if not batches.cancel(session, batch_id):
            raise NotFoundError(f"There is no batch {batch_id}.", param="batch_id")
        note(services, session, "batch.cancel", batch_id)


def page(services: Services, batch_id: str, reading: Reading, *, limit: int) -> ResultPage:
    """Return the results after a cursor, whether there are more, and the batch's status.

    Raises:
        NotFoundError: no such batch.

    """
    with services.store.transaction() as session:
        # Read the batch first: if it ends between the two reads, no result may be missed after its end.
        view = batch_views.get(session, batch_id)
        if view is None:
            raise NotFoundError(f"There is no batch {batch_id}.", param="batch_id")
        if view.results_dropped_at is not None:
            raise NotFoundError(
                f"The results of {batch_id} were deleted at {view.results_dropped_at:%Y-%m-%d %H:%M} UTC.",
                param="batch_id",
                code="results_dropped",
            )
        read = result_views.page_of_input if reading.in_input_order else result_views.page
        rows, has_more = cut(read(session, batch_id, after=reading.after, limit=limit + 1), limit)
        ids = [row.request_id for row in rows]
        tries = attempts.of_requests(session, ids)
        requests = request_views.of_results(session, ids) if reading.with_requests else {}
    cursor = reading.after
    if rows:
        cursor = rows[-1].position + 1 if reading.in_input_order else rows[-1].sequence
    return ResultPage(
        data=[
            to_result(row, services.checkpoint, tries.get(row.request_id, ()), requests.get(row.request_id))
            for row in rows
        ],
        next=cursor,
        has_more=has_more,
        status=view.status,
    )


def has_news(services: Services, batch_id: str, reading: Reading) -> bool:
    """Return whether a reader at this cursor can stop waiting: a result is there, or none will come."""
    with services.store.look() as session:
        return result_views.has_news(
            session, batch_id, after=reading.after, in_input_order=reading.in_input_order
        )


def batch_page(
    services: Services, *, after: str | None, limit: int, status: BatchStatus | None, labels: Labels
) -> BatchPage:
    """Return a page of batches, newest first, starting after the batch `after`; raises UnknownCursorError."""
    with services.store.transaction() as session:
        found = batch_views.page(session, after=after, limit=limit + 1, status=status, labels=labels)
        page, has_more = cut(found, limit)
        deliveries = delivery_log.deliveries_of(session, [view.id for view in page])
    forecasters = services.read_forecasters(page)
    data = [
        to_answer(
            view,
            deliveries.get(view.id),
            None,
            currency=services.settings.currency,
            forecasters=forecasters,
        )
        for view in page
    ]
    return BatchPage(data=data, last_id=data[-1].batch_id if data else None, has_more=has_more)


def stats(services: Services) -> BatchStats:
    """Return the number of batches in each status, and the usage and latencies of all work."""
    with services.store.transaction() as session:
        counts = batch_counts.by_status(session)
        used = usage.measured(session, minutes=1).total
    return BatchStats(
        total_batches=sum(counts.values()),
        usage=to_usage(used, services.settings.currency),
        latency=to_latencies(used),
        **{str(status): count for status, count in counts.items()},
    )
