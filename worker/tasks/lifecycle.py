"""Own the Engine in a Celery bootstep: load it before the first task, drain it before the pool stops."""

import logging
import os
import sys
import threading
import time
from dataclasses import asdict
from datetime import timedelta
from functools import partial
from typing import Any, NoReturn
from uuid import uuid4

from celery import bootsteps

from worker.contract.messages import GPU_QUEUE, gpu_queue
from worker.contract.model_files import problem_of
from worker.contract.models import Model, ServedModel, identify, weight_format
from worker.engine.engine import Engine
from worker.engine.engine_thread import EngineThread
from worker.engine.requests.config import EngineConfig
from worker.engine.requests.errors import CheckpointError, ConfigError
from worker.engine.requests.generation import GenerationRequest
from worker.queue.feed import FeedWriter
from worker.runs.interactive_runner import InteractiveRunner
from worker.runs.lease_keeper import LeaseKeeper
from worker.runs.response_cache import ResponseCache
from worker.runs.run_meters import RunMeters
from worker.runs.shard_runner import ShardRunner
from worker.runs.shard_saver import ShardSaver
from worker.settings import EXIT_CONFIGURATION, Settings, settings
from worker.store.database.notify import wake_dispatcher
from worker.store.database.session import DATABASE_AWAY, Store
from worker.store.requests import models
from worker.store.watching import workers
from worker.tasks.embedding import embed
from worker.tasks.extra_slots import ExtraSlots
from worker.tasks.interactive import InteractiveLane
from worker.tasks.listening import listen
from worker.tasks.meters import MeterWriter
from worker.values.sampling import SamplingParams
from worker.values.step_costs import STEP_COSTS

logger = logging.getLogger(__name__)

BEAT_SECONDS = 5.0
# A save takes milliseconds; while one that is cut off holds its locks, no other worker can take over.
TRANSACTION_SECONDS = 7.0
EXIT_ENGINE_FAILED = 70  # EX_SOFTWARE of sysexits.h: the supervisor starts this process again

_runner: ShardRunner | None = None


def runner() -> ShardRunner:
    """Return this process's runner.

    Raises:
        RuntimeError: called outside a gpu worker.

    """
    if _runner is None:
        raise RuntimeError("no engine in this process: start the worker on worker.tasks.run_shard")
    return _runner


class EngineStep(bootsteps.StartStopStep):
    """Loads the engine once the pool exists, and hands unfinished work back when the worker stops."""

    requires = ("celery.worker.components:Pool",)

    def __init__(self, parent: Any, **kwargs: Any) -> None:
        super().__init__(parent, **kwargs)
        self._stopping = threading.Event()
        self._ready = threading.Event()
        self._info: dict[str, Any] = {}

    def start(self, parent: Any) -> None:
        """Load the model, start the runners, and send heartbeats for as long as the engine makes progress."""
        global _runner  # noqa: PLW0603 - one engine a process is the point
        config = settings()
        if problem := problem_of(config.model):
            _refuse(f"HEADRACE_MODEL: {problem}")
        self._store = Store(
            config.database_url,
            pool_size=3 * config.shards_in_flight + config.interactive_in_flight + 4,
            transaction_seconds=TRANSACTION_SECONDS,
        )
        # Several processes may run under one Celery name, perhaps one for each device.
        worker = f"{parent.hostname}/{os.getpid()}-{uuid4().hex[:6]}"
        self._engine = EngineThread(lambda: _warm_engine(config), on_failure=_exit_failed)
        model = identify(config.model)
        self._beat = threading.Thread(target=self._keep_beating, args=(worker, model), daemon=True)
        self._beat.start()
        try:
            self._engine.start()
        except (CheckpointError, ConfigError) as error:
            name = "HEADRACE_MODEL" if isinstance(error, CheckpointError) else "the engine's settings"
            _refuse(f"{name}: {error}")
        queues = parent.app.amqp.queues
        queues.select_add(queues[gpu_queue(model.fingerprint)])
        info = asdict(self._engine.model_info) | self._engine.limits
        info |= {"model_fingerprint": model.fingerprint, "model_tokenizer": model.tokenizer}
        logger.info("engine ready: %s", info)
        with self._store.transaction() as session:
            served = models.register(session, ServedModel(model, weight_format(config.model), config.dtype))
        self._keeper = LeaseKeeper(
            self._store,
            self._engine,
            worker=worker,
            lease=timedelta(seconds=config.lease_seconds),
            model=served,
        )
        self._keeper.start()
        run_meters = RunMeters()
        self._meters = MeterWriter(self._store, worker, run_meters, model=model.fingerprint)
        cache = ResponseCache(
            self._store,
            _arithmetic(config, model),
            timedelta(seconds=config.cache_ttl_seconds),
            partial(embed, self._engine),
        )
        _runner = ShardRunner(
            store=self._store,
            meters=run_meters,
            cache=cache,
            saver=ShardSaver(self._store),
            engine=self._engine,
            keeper=self._keeper,
            save_seconds=config.save_seconds,
            drain_seconds=config.drain_seconds,
            draining=self._stopping,
            checkpoint_tokens=config.checkpoint_tokens,
        )
        self._feed = FeedWriter(config.redis_url)
        interactive = InteractiveRunner(
            store=self._store,
            engine=self._engine,
            feed=self._feed,
            keeper=self._keeper,
            save_seconds=config.save_seconds,
            drain_seconds=config.drain_seconds,
            draining=self._stopping,
            meters=run_meters,
            cache=cache,
        )
        self._lane = InteractiveLane(
            interactive,
            self._store,
            config.database_url,
            slots=config.interactive_in_flight,
            sweep_seconds=config.sweep_seconds,
        )
        self._lane.start()
        self._extra_slots = ExtraSlots(_runner, self._store, slots=config.shards_in_flight)
        self._extra_slots.start()
        listen(config.database_url, (_runner, interactive), self._stopping, worker=worker)
        self._info = info
        self._ready.set()

    def stop(self, parent: Any) -> None:
        """Drain: running shards get `drain_seconds` to finish and hand back the rest."""
        logger.info("draining for at most %g s", settings().drain_seconds)
        self._stopping.set()
        self._beat.join()
        self._lane.stop()
        self._extra_slots.stop()
        parent.pool.executor.shutdown(wait=True, cancel_futures=True)
        self._keeper.stop()
        self._write_meters()
        self._feed.close()
        self._engine.stop()
        self._store.close()

    def _write_meters(self) -> None:
        try:
            self._meters.write(self._engine.stats)
        except DATABASE_AWAY as error:
            logger.warning("meters are not written yet: %s", str(error).splitlines()[0])

    def _keep_beating(self, name: str, model: Model) -> None:
        """Send heartbeats, with 0 slots while the model loads; end the process if the engine hangs."""
        config = settings()
        is_known = False  # to the dispatcher: it issues no tickets for a model without a worker
        while True:
            if time.monotonic() - self._engine.last_progress_at > config.step_timeout_seconds:
                logger.critical("no engine step for %g s", config.step_timeout_seconds)
                os._exit(EXIT_ENGINE_FAILED)
            try:
                with self._store.transaction() as session:
                    if self._stopping.is_set():
                        workers.gone(session, name)
                        return
                    is_ready = self._ready.is_set()
                    slots = config.shards_in_flight if is_ready else 0
                    costs = self._engine.costs if is_ready else None
                    info = self._info | {STEP_COSTS: None if costs is None else asdict(costs)}
                    workers.seen(
                        session,
                        name=name,
                        queue=GPU_QUEUE,
                        slots=slots,
                        info=info,
                        model=model.fingerprint,
                    )
                    if is_ready and not is_known:
                        wake_dispatcher(session)
                is_known = is_ready
            except DATABASE_AWAY as error:
                logger.warning("Postgres does not answer: %s", str(error).splitlines()[0])
                if self._stopping.is_set():
                    return
            if self._ready.is_set():
                self._write_meters()
                self._stopping.wait(BEAT_SECONDS)
            else:
                self._ready.wait(BEAT_SECONDS)


def _warm_engine(config: Settings) -> Engine:
    """Return the engine after a first request, in which a new installation compiles its kernels."""
    engine = Engine(engine_config(config))
    engine.add(GenerationRequest("warm-up", (0,), SamplingParams(max_tokens=2)))
    while engine.has_unfinished:
        engine.step()
    return engine


def engine_config(config: Settings) -> EngineConfig:
    """Build the engine's configuration from the settings."""
    return EngineConfig.for_device(
        config.device,
        model=config.model,
        dtype=config.dtype,
        kv_cache_dtype=config.kv_cache_dtype,
        max_num_sequences=config.max_num_sequences,
        max_tokens_per_step=config.max_tokens_per_step,
        kv_cache_bytes=config.kv_cache_bytes,
        admission=config.admission,
        shares_prefixes=config.prefix_sharing == "deployment",
        num_threads=config.threads,
    )


def _arithmetic(config: Settings, model: Model) -> str:
    """Return a key that engines with the same answers share: the model, and how they compute it."""
    return f"{model.fingerprint} {config.dtype} {config.kv_cache_dtype} {config.device}"


def _refuse(problem: str) -> NoReturn:
    """End this process, which has done no work yet: its configuration is wrong."""
    sys.stderr.write(f"{problem}\n")
    sys.stderr.flush()
    os._exit(EXIT_CONFIGURATION)  # on SystemExit, Celery would stop steps that have not started


def _exit_failed(error: BaseException) -> None:
    logger.critical("the engine failed; this process ends so that a fresh one starts", exc_info=error)
    # Not sys.exit: every thread depends on the failed engine, and leases expire by themselves.
    os._exit(EXIT_ENGINE_FAILED)
