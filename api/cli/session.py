"""Runs a deployment for the length of one command: processes of the Procfile, which log to a file."""

import os
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx

from worker.settings import settings
from worker.up import ROOT, read_procfile, start, up

READY_SECONDS = 300.0


class SessionError(Exception):
    """The deployment did not start. The message names the log."""


def choose_ports() -> None:
    """Set PORT and FLOWER_PORT, if unset, to the default or else a free port, before settings are read."""
    for name, default in (("PORT", 8000), ("FLOWER_PORT", 5555)):
        if not os.environ.get(name):
            os.environ[name] = str(default if _is_free(default) else _free_port())


@contextmanager
def session(
    log: Path, processes: Sequence[str], *, replaced: Mapping[str, str] | None = None
) -> Iterator[httpx.Client]:
    """Migrate, start the named processes, wait for /ready; yield a client of the API.

    `replaced` holds commands that replace the Procfile's, by process name.

    Raises:
        SessionError: a step failed or took too long.

    """
    commands = read_procfile(ROOT / "Procfile") | dict(replaced or {})
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as output:
        if start(commands["release"], output=output).wait():
            raise SessionError(f"the migrations failed: see {log}")
        stopping = threading.Event()
        chosen = {name: commands[name] for name in processes}
        thread = threading.Thread(target=up, args=(chosen, stopping, output))
        thread.start()
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{settings().port}", timeout=60) as client:
                _wait_until_ready(client, log, thread)
                yield client
        finally:
            stopping.set()
            thread.join()


def _wait_until_ready(client: httpx.Client, log: Path, running: threading.Thread) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline:
        if not running.is_alive():
            raise SessionError(f"the configuration is wrong: see the end of {log}")
        try:
            if client.get("/ready").is_success:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    raise SessionError(f"not ready after {READY_SECONDS:g} s: see {log}")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
