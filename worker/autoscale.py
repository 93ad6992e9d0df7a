"""Start and stop gpu workers of this machine, as many as the dispatcher wants for the model.

`python -m worker.autoscale`, which `python -m worker.up` runs in place of `gpu` where HEADRACE_MAX_WORKERS is
set. A worker that holds a shard is never stopped; one that takes a shard at that moment hands it back.
"""

import signal
import socket
import sys
import threading
from dataclasses import dataclass, field
from typing import TextIO

from worker.contract.models import identify
from worker.loops import Loop
from worker.settings import EXIT_CONFIGURATION, Settings, settings
from worker.store.database.session import DATABASE_AWAY, Store
from worker.store.watching import scaling
from worker.store.watching.scaling import GpuWorker
from worker.telemetry import configure_logging
from worker.up import ROOT, Supervised, read_procfile, stop_all

LOOK_SECONDS = 1.0


@dataclass(slots=True)
class LocalWorkers:
    """The gpu workers that this process has started."""

    store: Store
    model: str  # the fingerprint of the one that they serve
    command: str
    stopping: threading.Event
    output: TextIO = sys.stdout
    refusal: str | None = None  # what is wrong with the configuration
    _running: dict[Supervised, Loop] = field(default_factory=dict)
    _leaving: dict[Supervised, Loop] = field(default_factory=dict)
    _num_started: int = 0

    def look(self) -> None:
        """Start the workers that are missing, or stop idle ones that are too many."""
        self._leaving = {one: loop for one, loop in self._leaving.items() if loop.is_running}
        for one, loop in list(self._running.items()):
            if not loop.is_running:  # only a wrong configuration ends it
                self.refusal = one.refusal
                self.stopping.set()
                return
        with self.store.look() as session:
            decisions = {one.model_fingerprint: one for one in scaling.published(session)}
            live = scaling.gpu_workers(session, model=self.model)
        wanted = decisions[self.model].wanted if self.model in decisions else 0
        for _ in range(wanted - len(self._running) - len(self._leaving)):
            self._start()
        surplus = len(self._running) - wanted
        for one in [one for one in reversed(self._running) if not _is_busy(one, live)][: max(0, surplus)]:
            self._leaving[one] = self._running.pop(one)
            one.stopping.set()
            one.send(signal.SIGTERM)

    def stop(self) -> None:
        """Stop all of them: they drain, and hand their shards back."""
        everybody = self._running | self._leaving
        for one in everybody:
            one.stopping.set()
        stop_all(list(everybody), list(everybody.values()))

    def _start(self) -> None:
        self._num_started += 1
        one = Supervised(f"gpu-{self._num_started}", self.command, threading.Event(), self.output)
        self._running[one] = Loop(one.name, one.keep_running, one.stopping).start()


def _is_busy(one: Supervised, live: list[GpuWorker]) -> bool:
    """Return whether a worker holds a shard."""
    return any(worker.is_busy and is_worker_of(one, worker.name) for worker in live)


def is_worker_of(one: Supervised, identity: str) -> bool:
    """Return whether a worker of this Identity is a process that we run: it has its host and its process."""
    return one.process is not None and f"@{socket.gethostname()}/{one.process.pid}-" in identity


def run(config: Settings, stopping: threading.Event) -> int:
    """Keep as many workers as are wanted until `stopping` is set; return the exit status."""
    store = Store(config.database_url, has_pooler=config.has_pooler, pool_size=1)
    command = read_procfile(ROOT / "Procfile")["gpu"]
    workers = LocalWorkers(store, identify(config.model).fingerprint, command, stopping)
    try:
        Loop("workers", workers.look, stopping, every_seconds=LOOK_SECONDS, away=DATABASE_AWAY).run()
    finally:
        workers.stop()
        store.close()
    if workers.refusal is None:
        return 0
    sys.stderr.write(f"{workers.refusal}\n")
    return EXIT_CONFIGURATION


if __name__ == "__main__":
    configure_logging(settings().log_level, settings().log_format)
    stopping = threading.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, lambda *_: stopping.set())
    sys.exit(run(settings(), stopping))
