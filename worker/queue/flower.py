"""Run Flower with every page behind its password, and end it promptly on SIGTERM.

Usage: `python -m worker.queue.flower [OPTION...]`.
"""

import atexit
import os
import sys
from typing import Any

from flower import urls
from flower.views import monitor
from tornado.web import authenticated

from worker.queue.celery_app import app


class _Metrics(monitor.Metrics):
    @authenticated
    async def get(self) -> None:
        await super().get()


class _Healthcheck(monitor.Healthcheck):
    @authenticated
    async def get(self) -> None:
        await super().get()


# Flower shows these pages, with task names and workers, without authentication.
OURS: dict[Any, Any] = {monitor.Metrics: _Metrics, monitor.Healthcheck: _Healthcheck}


def _protect() -> None:
    for number, handler in enumerate(urls.handlers):
        if isinstance(handler, tuple) and handler[1] in OURS:
            urls.handlers[number] = (handler[0], OURS[handler[1]])


def main(options: list[str]) -> None:
    """Run Flower until SIGTERM."""
    _protect()
    try:
        status = app.start(["flower", *options]) or 0
    except SystemExit as ended:
        status = ended.code
    # Without Redis its threads retry for ever, and an orderly exit would wait for them.
    atexit._run_exitfuncs()  # noqa: SLF001 - Flower's own among them
    sys.stdout.flush()
    os._exit(status if isinstance(status, int) else 1)


if __name__ == "__main__":
    main(sys.argv[1:])
