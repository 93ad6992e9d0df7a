"""Run one gpu worker for several models in turns: HEADRACE_MODELS.

`python -m worker.switching`, which `python -m worker.up` runs in place of `gpu` where HEADRACE_MODELS is set.
A worker is a process of one model. To switch, it drains and hands its shards back, and when it has ended, a
process of the next model starts.
"""

import logging
import os
import platform
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO
from uuid import uuid4

from worker.autoscale import is_worker_of
from worker.contract.models import Model, identify
from worker.contract.processes import BUILD, MODELS, SWITCHING, ModelState, build
from worker.loops import Loop
from worker.scaling.model_choice import choose
from worker.settings import EXIT_CONFIGURATION, Settings, settings
from worker.store.database.session import DATABASE_AWAY, Store
from worker.store.watching import scaling, workers
from worker.telemetry import configure_logging
from worker.up import ROOT, Supervised, read_procfile, stop_all

logger = logging.getLogger(__name__)

LOOK_SECONDS = 1.0


@dataclass(slots=True)
class ModelSwitch:
    """The one gpu worker of this process, and the models that it may serve."""

    store: Store
    models: Mapping[Path, Model]
    command: str
    stopping: threading.Event
    target_seconds: float = 3600.0  # until a batch without a deadline is due
    output: TextIO = sys.stdout
    clock: Callable[[], float] = time.monotonic
    refusal: str | None = None  # what is wrong with the configuration
    switch_seconds: float | None = None  # that the last switch took, or the first start; None: not ready yet
    _name: str = field(init=False)
    _held: str | None = None  # the fingerprint of the worker's model
    _process: Supervised | None = None
    _loop: Loop | None = None
    _asked_at: float = 0.0  # when the worker of this model was wished for
    _ready_at: float | None = None  # None: the model loads

    def __post_init__(self) -> None:
        self._name = f"{SWITCHING}@{platform.node()}/{os.getpid()}-{uuid4().hex[:6]}"

    def look(self) -> None:
        """Start the worker, or have it end if another model is worth it; tell Postgres what is loaded."""
        if self._loop is not None and not self._loop.is_running:
            self._forget_worker()
        if self.refusal is not None:
            return
        known = {model.fingerprint: directory for directory, model in self.models.items()}
        with self.store.look() as session:
            live = scaling.gpu_workers(session)
            own = next((one for one in live if self._process and is_worker_of(self._process, one.name)), None)
            name = None if own is None else own.name
            work = scaling.work_of(session, known, target_seconds=self.target_seconds, worker=name)
        if self._process is None:
            chosen = choose(work, self._held, held_seconds=0.0, switch_seconds=0.0)
            self._start(chosen or next(iter(known)), known)
        elif own is not None and own.is_ready and not self._process.stopping.is_set():
            if self._ready_at is None:
                self._note_ready()
            held_seconds, cost = self.clock() - (self._ready_at or 0.0), self.switch_seconds or 0.0
            chosen = choose(work, self._held, held_seconds=held_seconds, switch_seconds=cost)
            if chosen is not None and chosen != self._held:
                self._leave(chosen)
        self._tell()

    def stop(self) -> None:
        """Stop the worker: it drains, and hands its shards back."""
        if self._process is not None and self._loop is not None:
            self._process.stopping.set()
            stop_all([self._process], [self._loop])
        try:
            with self.store.transaction() as session:
                workers.gone(session, self._name)
        except DATABASE_AWAY as error:
            logger.warning("the end of this process is not recorded: %s", str(error).splitlines()[0])

    def _forget_worker(self) -> None:
        """Forget a worker that has ended: to make room, or as its configuration was wrong."""
        if self._process is not None and self._process.refusal is not None:
            self.refusal = self._process.refusal
            self.stopping.set()
        self._process = self._loop = None

    def _start(self, fingerprint: str, known: Mapping[str, Path]) -> None:
        self._held, self._ready_at = fingerprint, None
        if self.switch_seconds is None:
            self._asked_at = self.clock()
        variables = {"HEADRACE_MODEL": str(known[fingerprint])}
        stopping = threading.Event()
        self._process = Supervised("gpu", self.command, stopping, self.output, variables=variables)
        self._loop = Loop("gpu", self._process.keep_running, stopping).start()

    def _note_ready(self) -> None:
        self._ready_at = self.clock()
        self.switch_seconds = self._ready_at - self._asked_at
        logger.info("%s is ready after %.1f s", self._label(self._held), self.switch_seconds)

    def _leave(self, chosen: str) -> None:
        assert self._process is not None  # noqa: S101 - it is ready
        logger.info("the worker leaves %s for %s", self._label(self._held), self._label(chosen))
        self._held, self._ready_at, self._asked_at = chosen, None, self.clock()
        self._process.stopping.set()
        self._process.send(signal.SIGTERM)

    def _label(self, fingerprint: str | None) -> str:
        return next(model.label for model in self.models.values() if model.fingerprint == fingerprint)

    def _tell(self) -> None:
        states = dict.fromkeys((model.fingerprint for model in self.models.values()), ModelState.UNLOADED)
        if self._held is not None:
            states[self._held] = ModelState.LOADING if self._ready_at is None else ModelState.LOADED
        info: dict[str, Any] = {BUILD: build(), MODELS: states, "switch_seconds": self.switch_seconds}
        with self.store.transaction() as session:
            workers.seen(session, name=self._name, queue=SWITCHING, slots=0, info=info)


def run(config: Settings, stopping: threading.Event) -> int:
    """Keep one worker until `stopping` is set, of the model that is worth it; return the exit status."""
    store = Store(config.database_url, has_pooler=config.has_pooler, pool_size=1)
    models = {directory.resolve(): identify(directory) for directory in config.models}
    switch = ModelSwitch(
        store,
        models,
        read_procfile(ROOT / "Procfile")["gpu"],
        stopping,
        target_seconds=config.target_seconds,
    )
    try:
        Loop("switching", switch.look, stopping, every_seconds=LOOK_SECONDS, away=DATABASE_AWAY).run()
    finally:
        switch.stop()
        store.close()
    if switch.refusal is None:
        return 0
    sys.stderr.write(f"{switch.refusal}\n")
    return EXIT_CONFIGURATION


if __name__ == "__main__":
    configure_logging(settings().log_level, settings().log_format)
    stopping = threading.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, lambda *_: stopping.set())
    sys.exit(run(settings(), stopping))
