"""Tell Postgres that a gpu worker lives, while its engine makes progress. Must not know shards."""

import logging
import os
import threading
import time
from dataclasses import asdict
from importlib.metadata import version
from typing import Any

from worker.contract.engine_state import ENGINE_STATE, EngineState
from worker.contract.messages import GPU_QUEUE
from worker.contract.models import Model
from worker.contract.processes import BEAT_SECONDS, BUILD, CAPACITY, CORES, build
from worker.cores import usable_cores
from worker.engine.engine_thread import EngineThread
from worker.loops import Loop
from worker.settings import Settings
from worker.store.database.notify import wake_dispatcher
from worker.store.database.session import DATABASE_AWAY, Store
from worker.store.watching import workers
from worker.tasks.meters import MeterWriter
from worker.values.step_costs import STEP_COSTS

logger = logging.getLogger(__name__)

EXIT_ENGINE_FAILED = 70  # EX_SOFTWARE of sysexits.h: the process's parent starts it again


class Heartbeat:
    """Writes the worker's row and its meters every few seconds; ends the process if the engine hangs.

    The row has 0 slots while the model loads: the dispatcher issues no tickets then.
    """

    def __init__(
        self, store: Store, engine: EngineThread, config: Settings, *, worker: str, model: Model
    ) -> None:
        self._store = store
        self._engine = engine
        self._config = config
        self._worker = worker
        self._model = model
        self._info: dict[str, Any] = {
            BUILD: build(torch=version("torch")),
            CORES: usable_cores(),
            CAPACITY: config.capacity,
        }
        self._meters: MeterWriter | None = None  # None: the model loads
        self._is_known = False  # to the dispatcher
        self._stopping = threading.Event()
        self._beat_now = threading.Event()
        self._loop = Loop("heartbeat", self._turn, self._stopping, away=DATABASE_AWAY)

    def start(self) -> None:
        """Start to beat."""
        self._loop.start()

    def ready(self, info: dict[str, Any], meters: MeterWriter) -> None:
        """Announce that the worker takes work; `info` describes its engine."""
        self._info |= info
        self._meters = meters
        self._beat_now.set()

    def stop(self) -> None:
        """Stop, and announce that the worker takes no more work."""
        self._stopping.set()
        self._beat_now.set()
        self._loop.join()
        try:
            with self._store.transaction() as session:
                workers.gone(session, self._worker)
        except DATABASE_AWAY as error:
            logger.warning("the end of this worker is not recorded: %s", str(error).splitlines()[0])

    def beat(self) -> None:
        """Beat now, as there is an order in the worker's row."""
        self._beat_now.set()

    def _state(self) -> dict[str, Any]:
        engine = self._engine
        costs, blocks, stats = engine.costs, engine.block_use, engine.stats
        max_num_sequences, max_tokens = engine.step_limits
        state = EngineState(
            num_blocks=blocks.num_blocks,
            num_used_blocks=blocks.num_used,
            num_cached_blocks=blocks.num_cached,
            num_running=engine.num_running,
            num_waiting=engine.num_waiting,
            prefix_queried_tokens=stats.queried_tokens,
            prefix_cached_tokens=stats.cached_tokens,
            prefix_evictions=stats.evictions,
            max_num_sequences=max_num_sequences,
            max_tokens_per_step=max_tokens,
        )
        return {STEP_COSTS: None if costs is None else asdict(costs), ENGINE_STATE: asdict(state)}

    def _turn(self) -> None:
        self._check_progress()
        self._beat(self._meters)
        if self._meters is not None:
            self._meters.write(self._engine.stats)
        self._beat_now.wait(BEAT_SECONDS)
        self._beat_now.clear()

    def _check_progress(self) -> None:
        if time.monotonic() - self._engine.last_progress_at > self._config.step_timeout_seconds:
            logger.critical("no engine step for %g s", self._config.step_timeout_seconds)
            os._exit(EXIT_ENGINE_FAILED)

    def _beat(self, meters: MeterWriter | None) -> None:
        is_ready = meters is not None
        with self._store.transaction() as session:
            workers.seen(
                session,
                name=self._worker,
                queue=GPU_QUEUE,
                slots=self._config.shards_in_flight if is_ready else 0,
                info=self._info | (self._state() if is_ready else {}),
                model=self._model.fingerprint,
            )
            # Before the commit: an order that is seen twice does no harm, one that is lost does.
            if is_ready and workers.must_clear_cache(session, self._worker):
                self._engine.clear_prefix_cache()
            if is_ready and not self._is_known:
                wake_dispatcher(session)
        self._is_known = is_ready
