#!/usr/bin/env python
"""A container's health check: `python docker/health.py PROCESS` exits with 0 when the process works.

Each check asks for evidence that only a working process gives: an answer, a fresh row, or a connection that
listens for notifications.
"""

import socket
import sys
from collections.abc import Callable
from http import HTTPStatus
from http.client import HTTPConnection

from sqlalchemy import text

from worker.contract.messages import CALLBACKS_QUEUE, GPU_QUEUE
from worker.settings import settings
from worker.store.database.notify import DISPATCH, FILES
from worker.store.database.session import Store
from worker.store.watching.workers import SEEN_WITHIN

TIMEOUT_SECONDS = 3.0

# A gpu worker's name starts with its queue and its host's name.
WORKER_IS_SEEN = """
    SELECT 1 FROM workers WHERE starts_with(name, :name) AND slots > 0 AND seen_at > now() - :within LIMIT 1
"""
# A process of this container connects from the same address as this check.
PROCESS_LISTENS = """
    SELECT 1 FROM pg_stat_activity
    WHERE datname = current_database() AND query = :listen
        AND client_addr IS NOT DISTINCT FROM inet_client_addr()
"""


def web() -> bool:
    """Return whether the API answers."""
    return _answers(settings().port, "/health")


def flower() -> bool:
    """Return whether Flower answers, even if it only asks for a password."""
    return _answers(settings().flower_port, "/healthcheck", HTTPStatus.UNAUTHORIZED)


def gpu() -> bool:
    """Return whether the worker has lately reported that its engine is loaded and makes progress."""
    config = settings()  # each of many workers asks: not each by a session of its own
    store = Store(config.database_url, has_pooler=config.has_pooler, pool_size=1)
    return _finds(store, WORKER_IS_SEEN, name=f"{GPU_QUEUE}@{socket.gethostname()}/", within=SEEN_WITHIN)


def dispatcher() -> bool:
    """Return whether a dispatcher waits for notifications."""
    return _listens(DISPATCH)


def files() -> bool:
    """Return whether the files process waits for notifications."""
    return _listens(FILES)


def callbacks() -> bool:
    """Return whether the worker answers a ping through Redis."""
    from worker.queue.celery_app import app  # noqa: PLC0415 - the other checks need no Celery

    name = f"{CALLBACKS_QUEUE}@{socket.gethostname()}"
    return bool(app.control.ping(destination=[name], timeout=TIMEOUT_SECONDS, limit=1))


CHECKS: dict[str, Callable[[], bool]] = {
    check.__name__: check for check in (web, flower, gpu, dispatcher, files, callbacks)
}


def _answers(port: int, path: str, *also: HTTPStatus) -> bool:
    # urllib would go through the proxy that HTTP_PROXY names.
    connection = HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_SECONDS)
    try:
        connection.request("GET", path)
        return connection.getresponse().status in {HTTPStatus.OK, *also}
    except OSError:
        return False
    finally:
        connection.close()


def _listens(channel: str) -> bool:
    store = Store(settings().direct_url, pool_size=1)
    return _finds(store, PROCESS_LISTENS, listen=f"LISTEN {channel}")


def _finds(store: Store, query: str, **parameters: object) -> bool:
    try:
        with store.transaction() as session:
            return session.scalar(text(query), parameters) is not None
    finally:
        store.close()


def main(arguments: list[str]) -> int:
    """Run one check; return its exit status."""
    if len(arguments) != 1 or arguments[0] not in CHECKS:
        sys.stderr.write(f"usage: python docker/health.py {'|'.join(CHECKS)}\n")
        return 2
    if CHECKS[arguments[0]]():
        return 0
    sys.stderr.write(f"{arguments[0]} does not work\n")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
