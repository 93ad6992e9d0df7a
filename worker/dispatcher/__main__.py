"""Run a dispatcher until SIGTERM: issue tickets on every notification, sweep every HEADRACE_SWEEP_SECONDS.

Usage: `python -m worker.dispatcher`.
"""

import signal
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial

from worker.contract.prices import Prices
from worker.contract.processes import DISPATCHER
from worker.dispatcher.autoscaler import Autoscaler, withdraw
from worker.dispatcher.dispatcher import Dispatcher
from worker.loops import Loop
from worker.queue.broker import Broker
from worker.settings import Settings, settings
from worker.store.database.notify import wake_ups
from worker.store.database.session import DATABASE_AWAY, Store
from worker.store.watching.heartbeat import heartbeat
from worker.telemetry import configure_logging

TIDY_SECONDS = 60.0
DECIDE_SECONDS = 5.0  # between two decisions on the wanted number of workers


def run(config: Settings, stopping: threading.Event) -> None:
    """Dispatch until `stopping` is set; keep trying while Postgres or Redis is away."""
    store = Store(config.database_url, has_pooler=config.has_pooler, pool_size=3, prices=Prices.of(config))
    days = config.retention_days
    dispatcher = Dispatcher(
        store,
        Broker(config.redis_url),
        config.max_attempts,
        callbacks_per_receiver=config.callbacks_per_receiver,
        results_kept_for=None if days is None else timedelta(days=days),
    )

    def follow() -> None:
        swept_at = tidied_at = float("-inf")
        for number, _ in enumerate(wake_ups(config.direct_url, every_seconds=config.sweep_seconds)):
            if stopping.is_set():
                return
            if number == 0:
                dispatcher.lost_workers.connected()
            now = time.monotonic()
            if now - swept_at >= config.sweep_seconds:
                dispatcher.sweep()
                swept_at = now
            else:
                dispatcher.issue()
            if now - tidied_at >= TIDY_SECONDS:
                dispatcher.tidy()
                tidied_at = now

    duty: Callable[[], object]
    if config.max_workers is None:
        duty, seconds = partial(withdraw, store), TIDY_SECONDS
    else:
        duty, seconds = Autoscaler(store, config, most=config.max_workers).decide, DECIDE_SECONDS
    Loop("autoscaler", duty, stopping, every_seconds=seconds, away=DATABASE_AWAY).start()
    with heartbeat(store, DISPATCHER):
        Loop("dispatcher", follow, stopping, away=DATABASE_AWAY).run()


if __name__ == "__main__":
    configure_logging(settings().log_level, settings().log_format)
    stopping = threading.Event()
    # Not sys.exit: Python drops an exception that a handler raises during a weak reference's callback.
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, lambda *_: stopping.set())
    run(settings(), stopping)
