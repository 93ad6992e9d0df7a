"""Builds the overview from stored rows."""

from api.batches.eta import Forecasters, estimate
from api.dashboard.schemas import (
    DeliveriesAnswer,
    FailedBatch,
    FailingReceiverAnswer,
    LiveBatch,
    Overview,
    ShownExperiment,
    WorkerAnswer,
)
from api.dependencies import Services
from api.experiments.service import to_answer
from api.metrics.summary import busy_share, share
from worker.contract.engine_state import EngineState
from worker.contract.messages import GPU_QUEUE
from worker.contract.processes import CORES
from worker.contract.usage import SECONDS
from worker.store.batches.batch_views import BatchView
from worker.store.experiments import experiment_views
from worker.store.experiments.experiment_views import ExperimentView
from worker.store.watching import outlook, overview
from worker.store.watching.overview import FailingReceiver, Failure, WorkerLoad

MAX_BATCHES = 50
MAX_EXPERIMENTS = 10
MAX_FAILURES = 20
MAX_RECEIVERS = 20
MINUTES = 2  # a window of one to two minutes


def read_overview(deployment: Services) -> Overview:
    """Return the current overview of all tenants."""
    currency = deployment.settings.currency
    with deployment.everybody.transaction() as session:
        backlog = outlook.backlog(session)
        live = overview.live_batches(session, limit=MAX_BATCHES)
        forecasters = deployment.read_forecasters(live)
        counts = overview.delivery_counts(session)
        return Overview(
            window_seconds=60.0 * MINUTES,
            tokens_waiting=backlog.prompt_tokens + backlog.max_output_tokens,
            batches=[_to_live(view, forecasters) for view in live],
            experiments=[
                _to_experiment(view, currency)
                for view in experiment_views.page(session, after=None, limit=MAX_EXPERIMENTS)
            ],
            failures=[_to_failed(one) for one in overview.failures(session, limit=MAX_FAILURES)],
            workers=[_to_worker(load) for load in overview.worker_loads(session, minutes=MINUTES)],
            deliveries=DeliveriesAnswer(
                waiting=counts.waiting,
                retrying=counts.retrying,
                failed=counts.failed,
                failing_receivers=[
                    _to_receiver(one) for one in overview.failing_receivers(session, limit=MAX_RECEIVERS)
                ],
            ),
        )


def _to_live(view: BatchView, forecasters: Forecasters) -> LiveBatch:
    eta = estimate(view, forecasters)
    return LiveBatch(
        batch_id=view.id,
        name=view.name,
        tenant=view.tenant_id,
        status=view.status,
        paused=view.is_paused,
        start_after=view.start_after if view.is_scheduled else None,
        progress=round(view.progress, 4),
        requests=view.num_requests,
        requests_done=view.num_settled,
        requests_failed=view.num_failed,
        tokens=view.output_tokens + view.running_tokens,
        tokens_per_second=view.tokens_per_second if view.num_running_shards else None,
        eta_seconds=None if eta is None else eta.seconds,
        created_at=view.created_at,
    )


def _to_experiment(view: ExperimentView, currency: str) -> ShownExperiment:
    return ShownExperiment(tenant=view.tenant_id, **to_answer(view, currency).model_dump())


def _to_failed(failure: Failure) -> FailedBatch:
    view = failure.batch
    return FailedBatch(
        batch_id=view.id,
        name=view.name,
        tenant=view.tenant_id,
        status=view.status,
        requests=view.num_requests,
        requests_failed=view.num_failed or None,
        error_code=failure.error_code,
        error_message=failure.error_message,
        finished_at=view.finished_at,
    )


def _to_worker(load: WorkerLoad) -> WorkerAnswer:
    is_measured = load.queue == GPU_QUEUE and load.seconds > 0
    state = EngineState.of_worker(load.info)
    tokens = load.readings.get("decode_tokens", 0.0)
    return WorkerAnswer(
        name=load.name,
        queue=load.queue,
        slots=load.slots,
        model=load.info.get("name"),
        device=load.info.get("device"),
        occupancy=share(load.readings, ("scheduled_sequences",), ("sequence_rows",)),
        tokens_per_second=round(tokens / load.seconds, 2) if is_measured else None,
        device_busy=busy_share(load.readings, SECONDS, load.seconds) if is_measured else None,
        cpu_busy=busy_share(load.readings, ("cpu_seconds",), load.seconds * load.info.get(CORES, 0)),
        kv_occupancy=None if state is None else round(state.occupancy, 4),
        prefix_hit_rate=None if state is None or state.hit_rate is None else round(state.hit_rate, 4),
        prefix_evictions=None if state is None else state.prefix_evictions,
        started_at=load.started_at,
        seen_at=load.seen_at,
    )


def _to_receiver(one: FailingReceiver) -> FailingReceiverAnswer:
    return FailingReceiverAnswer(
        receiver=one.url or one.receiver,
        failures_in_a_row=one.num_failures,
        paused_until=one.paused_until,
        deliveries_waiting=one.num_waiting,
    )
