"""Start Postgres and Redis from wheels, when no URL is given.

`python -m worker.embedded COMMAND...` starts what DATABASE_URL and REDIS_URL do not name, runs the
command with both set, and stops what it started. All data is under HEADRACE_DATA_DIR. A caller that reaches
an API on loopback is on this machine already, so HEADRACE_AUTH is off there unless it is set. The processes
that it starts die with it; with `--with-parent`, before the command, it dies with its own parent too. With
`--env-file=FILE`, the variables of that file are set, if it exists, unless they have a value already.
"""

import fcntl
import logging
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TextIO

from worker.child import die_with_parent, with_parent
from worker.preflight import ConfigurationError, check_model
from worker.private import OTHERS, make_directory, make_private
from worker.servers.postgres import PostgresServer
from worker.servers.redis import RedisServer
from worker.servers.server import ServerError
from worker.settings import (
    DATABASE_URL_FILE,
    DEFAULT_DATA_DIR,
    DEFAULT_HOST,
    EXIT_CONFIGURATION,
    NO_SERVICES,
    is_loopback,
    read_settings,
    take_env_file,
)
from worker.telemetry import configure_logging
from worker.webhooks.sealing import new_key
from worker.webhooks.signing import new_secret

WITH_PARENT = "--with-parent"
ENV_FILE = "--env-file"
LOCK_SECONDS = 1.0  # how long a deployment that was just killed may still hold the lock


class EmbeddedError(Exception):
    """A deployment cannot start. The message says why and what to do."""


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")


@contextmanager
def services(
    environment: Mapping[str, str],
    *,
    interrupted: threading.Event | None = None,
    on_failure: Callable[[str], None] = _say,
) -> Iterator[dict[str, str]]:
    """Start the services that `environment` does not name, keep them running; yield the variables to add.

    `on_failure` gets the reason, from another thread, when a server that had started is given up.

    Raises:
        ConfigurationError: the data directory cannot be used.
        EmbeddedError: the data directory is in use, a service does not start, or `interrupted` was set
            before all services had started.

    """
    data_dir = Path(environment.get("HEADRACE_DATA_DIR") or DEFAULT_DATA_DIR).expanduser().resolve()
    added = {"HEADRACE_DATA_DIR": str(data_dir)}
    watched = (interrupted or threading.Event(), on_failure)
    with ExitStack() as stack:
        try:
            make_directory(data_dir)
            stack.enter_context(_sole_user(data_dir))
            make_private(data_dir)
        except OSError as error:
            problem = f"{data_dir} cannot be used: {error.strerror}: choose another directory"
            raise ConfigurationError(f"HEADRACE_DATA_DIR: {problem}") from None
        try:
            if not environment.get("DATABASE_URL"):
                postgres = PostgresServer(data_dir / "postgres")
                added["DATABASE_URL"] = stack.enter_context(postgres.running(*watched))
                # For the command line in another shell: worker.settings.database_url reads it.
                stack.enter_context(_announced(data_dir / DATABASE_URL_FILE, added["DATABASE_URL"]))
            if not environment.get("REDIS_URL"):
                (data_dir / "redis").mkdir(mode=0o700, exist_ok=True)
                password = _kept_secret(data_dir / "redis" / "password", lambda: secrets.token_urlsafe(24))
                redis = RedisServer(data_dir / "redis", password)
                added["REDIS_URL"] = stack.enter_context(redis.running(*watched))
        except ServerError as error:
            raise EmbeddedError(str(error)) from None
        if not environment.get("HEADRACE_AUTH") and is_loopback(
            environment.get("HEADRACE_HOST") or DEFAULT_HOST
        ):
            added["HEADRACE_AUTH"] = "off"
        if not environment.get("FLOWER_BASIC_AUTH"):
            password = _kept_secret(data_dir / "flower_password", lambda: secrets.token_urlsafe(24))
            added["FLOWER_BASIC_AUTH"] = f"headrace:{password}"
        if not environment.get("HEADRACE_WEBHOOK_SECRET"):
            added["HEADRACE_WEBHOOK_SECRET"] = _kept_secret(data_dir / "webhook_secret", new_secret)
        if not environment.get("HEADRACE_SECRET_KEY"):
            added["HEADRACE_SECRET_KEY"] = _kept_secret(data_dir / "secret_key", new_key)
        yield added


@contextmanager
def _sole_user(data_dir: Path) -> Iterator[None]:
    with os.fdopen(os.open(data_dir / "lock", os.O_RDWR | os.O_CREAT, 0o600), "r+") as lock:
        deadline = time.monotonic() + LOCK_SECONDS
        while not _is_locked(lock):
            if time.monotonic() < deadline:
                time.sleep(0.05)
                continue
            holder = lock.read().strip() or "another deployment"
            raise EmbeddedError(f"{data_dir} is in use by {holder}: stop it, or set HEADRACE_DATA_DIR")
        lock.truncate()
        lock.write(f"process {os.getpid()}, since {time.strftime('%Y-%m-%d %H:%M:%S')}\n")
        lock.flush()
        yield


def _is_locked(file: TextIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def _announced(path: Path, url: str) -> Iterator[None]:
    path.touch(mode=0o600)
    path.write_text(url)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def _kept_secret(path: Path, make: Callable[[], str]) -> str:
    if not path.exists():
        fresh = path.with_suffix(".new")
        fresh.touch(mode=0o600)
        fresh.write_text(make())
        fresh.rename(path)
    return path.read_text()


class _Command:
    """Runs a command with the services: passes signals on to it, and stops the services after it."""

    def __init__(self) -> None:
        self.interrupted = threading.Event()
        self._child: subprocess.Popen[bytes] | None = None
        self._received = 0
        self._failure: str | None = None

    def run(self, command: list[str]) -> int:
        """Run the command with the services up; return its exit status."""
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if signal.getsignal(signum) != signal.SIG_IGN:  # nohup ignores SIGHUP: leave it so
                signal.signal(signum, self._forward)
        try:
            _check_settings()
            with services(os.environ, interrupted=self.interrupted, on_failure=self._give_up) as added:
                if self.interrupted.is_set():
                    return 128 + self._received
                self._child = subprocess.Popen(with_parent(command), env=os.environ | added, process_group=0)
                if self.interrupted.is_set():  # the signal came before there was a child
                    self._child.terminate()
                status = self._child.wait()
        except EmbeddedError as error:
            if self._received:
                return 128 + self._received
            _say(str(error))
            return 1
        except ConfigurationError as error:
            _say(str(error))
            return EXIT_CONFIGURATION
        if self._failure is not None:
            return 1
        return status if status >= 0 else 128 - status

    def _forward(self, signum: int, _frame: object) -> None:
        self._received = signum
        self._stop(signal.SIGINT if signum == signal.SIGINT else signal.SIGTERM)

    def _give_up(self, failure: str) -> None:
        self._failure = failure
        _say(failure)
        self._stop(signal.SIGTERM)

    def _stop(self, signum: signal.Signals) -> None:
        self.interrupted.set()
        if self._child is not None and self._child.poll() is None:
            self._child.send_signal(signum)


def _check_settings() -> None:
    """Check what can be checked before the services run; end the process, or raise ConfigurationError."""
    away = {name: url for name, url in NO_SERVICES.items() if not os.environ.get(name.upper())}
    config = read_settings(**away)
    check_model(config.model)


def main(arguments: list[str]) -> int:
    """Run a command with the services up; return its exit status."""
    file, dies_with_parent, command = None, False, list(arguments)
    while command and command[0].startswith("--"):
        option, _, value = command.pop(0).partition("=")
        if option == ENV_FILE:
            file = Path(value)
        elif option == WITH_PARENT:
            dies_with_parent = True
        else:
            command.clear()
    if not command:
        _say(f"usage: python -m worker.embedded [{ENV_FILE}=FILE] [{WITH_PARENT}] COMMAND [ARGUMENT...]")
        return 2
    if file is not None:
        take_env_file(file)
    if dies_with_parent:
        die_with_parent(signal.SIGKILL)  # the command and the services then die too
    os.umask(OTHERS)  # for every file that the command and the services make
    return _Command().run(command)


if __name__ == "__main__":
    if os.environ.get("HEADRACE_LOG_FORMAT") == "json":
        configure_logging("warning", "json")
    else:
        logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    sys.exit(main(sys.argv[1:]))
