"""Own the Engine in a Celery bootstep: load it before the first task, drain it before the pool stops."""

import gc
import logging
import os
import sys
import threading
from dataclasses import asdict
from datetime import timedelta
from functools import cache, partial
from typing import Any, NoReturn
from uuid import uuid4

from celery import bootsteps

from worker.chat.template import ChatTemplate
from worker.contract.messages import gpu_queue
from worker.contract.model_files import problem_of
from worker.contract.models import Model, ServedModel, identify, weight_format
from worker.contract.prices import Prices
from worker.engine.engine import Engine
from worker.engine.engine_thread import EngineThread
from worker.engine.requests.errors import CheckpointError, ConfigError
from worker.engine.requests.generation import GenerationRequest
from worker.loops import Loop
from worker.queue.feed import FeedWriter
from worker.runs.interactive_runner import InteractiveRunner
from worker.runs.lease_keeper import LeaseKeeper
from worker.runs.response_cache import ResponseCache
from worker.runs.run_meters import RunMeters
from worker.runs.shard_runner import ShardRunner
from worker.runs.shard_saver import ShardSaver
from worker.runs.tail import LOOK_SECONDS, Tail
from worker.runs.tool_loops import LoopTools
from worker.settings import EXIT_CONFIGURATION, Settings, settings
from worker.store.database.session import DATABASE_AWAY, Store
from worker.store.requests import models
from worker.tasks.embedding import embed
from worker.tasks.engine_config import embedding_engine_config, engine_config
from worker.tasks.extra_slots import ExtraSlots
from worker.tasks.heartbeat import EXIT_ENGINE_FAILED, Heartbeat
from worker.tasks.interactive import InteractiveLane
from worker.tasks.listening import listen
from worker.tasks.meters import MeterWriter
from worker.tasks.task_events import task_events
from worker.telemetry import add_to_process
from worker.values.sampling import SamplingParams
from worker.webhooks.targets import Targets
from worker.webhooks.tool_calls import ToolCaller

logger = logging.getLogger(__name__)

# A save takes milliseconds; while one that is cut off holds its locks, no other worker can take over.
TRANSACTION_SECONDS = 7.0
# How long a thread may keep Python's lock from another that wants it: a tenth of Python's default.
# The engine's threads need it some twenty times in each Step, and runs of shards have it now and then. With
# less, runs get it so late beside quick Steps that a new tenant's shard waits for those of others.
LOCK_SECONDS = 0.0005
# The most that batches of 600 results a second used at once; more are opened for the moment they are needed.
KEPT_CONNECTIONS = 8

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

    def start(self, parent: Any) -> None:
        """Load the model, and start every loop of this worker."""
        global _runner
        config = settings()
        if problem := problem_of(config.model):
            _refuse(f"HEADRACE_MODEL: {problem}")
        self._store = _open_store(config)
        # Several processes may run under one Celery name, perhaps one for each device.
        worker = f"{parent.hostname}/{os.getpid()}-{uuid4().hex[:6]}"
        add_to_process(worker=worker)
        model = identify(config.model)
        self._embedding_model = _start_embedding_model(config)
        self._engine = EngineThread(lambda: _warm_engine(config), on_failure=_exit_failed)
        self._heartbeat = Heartbeat(self._store, self._engine, config, worker=worker, model=model)
        self._heartbeat.start()
        try:
            self._engine.start()
        except (CheckpointError, ConfigError) as error:
            name = "HEADRACE_MODEL" if isinstance(error, CheckpointError) else "the engine's settings"
            _refuse(f"{name}: {error}")
        queues = parent.app.amqp.queues
        queues.select_add(queues[gpu_queue(model.fingerprint)])
        info = asdict(self._engine.model_info) | self._engine.limits
        info |= {
            "model_fingerprint": model.fingerprint,
            "model_tokenizer": model.tokenizer,
            "quantization": self._engine.model_info.quantization,
            "checkpoint_format": weight_format(config.model),
        }
        logger.info("engine ready: %s", info)

        run_meters = RunMeters()
        self._meters = MeterWriter(self._store, worker, run_meters, model=model.fingerprint)
        self._keeper = self._lease_keeper(config, worker, model)
        self._feed = FeedWriter(config.redis_url)
        _runner, interactive = self._runners(config, model, run_meters)
        slots, sweep_seconds = config.interactive_in_flight, config.sweep_seconds
        self._lane = InteractiveLane(interactive, self._store, slots=slots, sweep_seconds=sweep_seconds)
        self._extra_slots = ExtraSlots(_runner, self._store, slots=config.shards_in_flight)
        self._keeper.start()
        self._lane.start()
        self._extra_slots.start()
        self._backups = Loop(
            "backups", _runner.back_up, self._stopping, every_seconds=LOOK_SECONDS, away=DATABASE_AWAY
        ).start()
        runners = (_runner, interactive)
        listen(
            config.direct_url,
            runners,
            self._stopping,
            worker=worker,
            ordered=self._heartbeat.beat,
            interactive=self._lane.take,
        )
        # What is there now stays: a full collection, which stops the Steps, took 0.26 s to look at it again.
        gc.freeze()
        sys.setswitchinterval(LOCK_SECONDS)
        self._heartbeat.ready(info, self._meters)

    def stop(self, parent: Any) -> None:
        """Drain: running shards get `drain_seconds` to finish and hand back the rest."""
        logger.info("draining for at most %g s", settings().drain_seconds)
        self._stopping.set()
        self._heartbeat.stop()
        self._lane.stop()
        self._extra_slots.stop()
        self._backups.join()
        parent.pool.executor.shutdown(wait=True, cancel_futures=True)
        self._keeper.stop()
        self._write_meters()
        self._feed.close()
        self._engine.stop()
        if self._embedding_model is not None:
            self._embedding_model.stop()
        self._store.close()

    def _lease_keeper(self, config: Settings, worker: str, model: Model) -> LeaseKeeper:
        with self._store.transaction() as session:
            served = models.register(session, ServedModel(model, weight_format(config.model), config.dtype))
        lease = timedelta(seconds=config.lease_seconds)
        return LeaseKeeper(
            self._store,
            self._engine,
            worker=worker,
            lease=lease,
            model=served,
            on_claim=task_events.claimed,
            sweep_seconds=config.sweep_seconds,
            slots=config.shards_in_flight,
        )

    def _runners(
        self, config: Settings, model: Model, run_meters: RunMeters
    ) -> tuple[ShardRunner, InteractiveRunner]:
        responses = ResponseCache(
            self._store,
            _arithmetic(config, model),
            timedelta(seconds=config.cache_ttl_seconds),
            partial(embed, self._embedding_model or self._engine),
            similarity=config.cache_similarity,
            embedding_model="" if (own := config.embedding_model) is None else identify(own).fingerprint,
            check_share=config.cache_checks,
            is_shadow=config.cache_shadow == "on",
        )
        runner = ShardRunner(
            store=self._store,
            meters=run_meters,
            cache=responses,
            saver=ShardSaver(self._store),
            engine=self._engine,
            keeper=self._keeper,
            save_seconds=config.save_seconds,
            drain_seconds=config.drain_seconds,
            draining=self._stopping,
            checkpoint_tokens=config.checkpoint_tokens,
            tools=_loop_tools(config),
            tail=Tail(self._store, self._keeper.worker, self._keeper.serves),
        )
        interactive = InteractiveRunner(
            store=self._store,
            engine=self._engine,
            feed=self._feed,
            keeper=self._keeper,
            save_seconds=config.save_seconds,
            drain_seconds=config.drain_seconds,
            draining=self._stopping,
            meters=run_meters,
            cache=responses,
        )
        return runner, interactive

    def _write_meters(self) -> None:
        try:
            self._meters.write(self._engine.stats)
        except DATABASE_AWAY as error:
            logger.warning("the last meters are not written: %s", str(error).splitlines()[0])


def _open_store(config: Settings) -> Store:
    return Store(
        config.database_url,
        has_pooler=config.has_pooler,
        pool_size=KEPT_CONNECTIONS,
        max_overflow=3 * config.shards_in_flight + config.interactive_in_flight + 4,
        transaction_seconds=TRANSACTION_SECONDS,
        prices=Prices.of(config),
    )


def _start_embedding_model(config: Settings) -> EngineThread | None:
    """Load the model that embeds prompts, before the served model's cache takes the device's memory."""
    model = config.embedding_model
    if model is None:
        return None
    if problem := problem_of(model):
        _refuse(f"HEADRACE_EMBEDDING_MODEL: {problem}")
    engine = EngineThread(lambda: Engine(embedding_engine_config(config, model)), on_failure=_exit_failed)
    try:
        engine.start()
    except (CheckpointError, ConfigError) as error:
        _refuse(f"HEADRACE_EMBEDDING_MODEL: {error}")
    return engine


def _warm_engine(config: Settings) -> Engine:
    """Return the engine after a first request, in which a new installation compiles its kernels."""
    engine = Engine(engine_config(config))
    urgent = 1  # no batch policy holds it back
    engine.add(GenerationRequest("warm-up", (0,), SamplingParams(max_tokens=2), priority=urgent))
    while engine.has_unfinished:
        engine.step()
    return engine


def _loop_tools(config: Settings) -> LoopTools:
    targets = Targets(config.allowed_networks, config.webhook_ports)
    caller = ToolCaller(config.webhook_secrets, targets, config.tool_calls_in_flight)
    return LoopTools(caller, cache(partial(ChatTemplate.load, config.model)))


def _arithmetic(config: Settings, model: Model) -> str:
    """Return a key that engines with the same answers share: the model, and how they compute it."""
    return f"{model.fingerprint} {config.dtype} {engine_config(config).kv_format} {config.device}"


def _refuse(problem: str) -> NoReturn:
    """End this process, which has done no work yet: its configuration is wrong."""
    sys.stderr.write(f"{problem}\n")
    sys.stderr.flush()
    os._exit(EXIT_CONFIGURATION)  # on SystemExit, Celery would stop steps that have not started


def _exit_failed(error: BaseException) -> None:
    logger.critical("the engine failed; this process ends so that a fresh one starts", exc_info=error)
    # Not sys.exit: every thread depends on the failed engine, and leases expire by themselves.
    os._exit(EXIT_ENGINE_FAILED)
