"""Check a configuration before anything is started. Each error is one line that says what to change.

It finds early what the processes would find later, one by one. Must not load torch into this process.
"""

import errno
import socket
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

import psycopg
from psycopg.rows import TupleRow
from redis import Redis, RedisError

from worker.contract.model_files import problem_of
from worker.settings import Settings

ANSWER_SECONDS = 5
# Enough to see that a pooler is between, even if others take and give back its sessions meanwhile.
SESSION_LOOKS = 5
FINDS_A_GPU = "import sys, torch; sys.exit(not torch.cuda.is_available())"


class ConfigurationError(Exception):
    """The configuration does not let a deployment run. The message names the setting and what to do."""


def check(config: Settings, processes: Collection[str]) -> None:
    """Check the settings for these processes of the Procfile; raises ConfigurationError."""
    check_model(config.model)
    if config.embedding_model is not None:
        check_model(config.embedding_model, "HEADRACE_EMBEDDING_MODEL")
    _check_models(config)
    if "web" in processes:
        _check_port("PORT", config.host, config.port)
    if "flower" in processes:
        _check_port("FLOWER_PORT", "127.0.0.1", config.flower_port)
    check_postgres(config)
    _check_redis(config.redis_url)
    if {"gpu", "autoscale", "switching"} & set(processes) and config.device == "cuda":
        _check_gpu()


def check_model(directory: Path, name: str = "HEADRACE_MODEL") -> None:
    """Check the files of a model directory, which this setting names; raises ConfigurationError."""
    if problem := problem_of(directory):
        raise ConfigurationError(f"{name}: {problem}")


def _check_models(config: Settings) -> None:
    if config.models and config.max_workers is not None:
        raise ConfigurationError("HEADRACE_MODELS: does not go with HEADRACE_MAX_WORKERS: unset one of them")
    for directory in config.models:
        check_model(directory, "HEADRACE_MODELS")


def _check_port(name: str, host: str, port: int) -> None:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            # As the servers do: a port that a connection has just left is free.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except socket.gaierror as error:
        raise ConfigurationError(f"HEADRACE_HOST: {host} is no address: {error.strerror}") from None
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            problem = (
                f"{name}: {host}:{port} is taken: stop what listens there, or set {name} to another port"
            )
        elif error.errno == errno.EADDRNOTAVAIL:
            problem = f"HEADRACE_HOST: {host} is no address of this machine"
        else:
            problem = f"{name}: {host}:{port} cannot be listened on: {error.strerror}"
        raise ConfigurationError(problem) from None


def without_driver(url: str) -> str:
    """Return a URL of SQLAlchemy as libpq takes it."""
    return url.replace("+psycopg", "", 1)


def check_postgres(config: Settings) -> None:
    """Check that Postgres answers and gives each connection a session; raises ConfigurationError."""
    name = "DATABASE_URL"
    try:
        answers = identity = _identity(config.database_url)
        if config.has_pooler:
            name = "DATABASE_DIRECT_URL"
            identity = _identity(config.direct_url)
        is_shared = _shares_sessions(config.direct_url)
    except psycopg.OperationalError as error:
        problem = f"{_first_line(error)}: start Postgres, or correct the address"
        raise ConfigurationError(f"{name}: {problem}") from None
    except psycopg.Error:  # its message would show the password
        raise ConfigurationError(f"{name}: this is no address of a Postgres database") from None
    if is_shared:
        raise ConfigurationError(
            f"{name}: there a pooler gives one session to several connections (transaction mode): set "
            "DATABASE_DIRECT_URL to the address of Postgres itself"
        )
    if answers != identity:
        raise ConfigurationError("DATABASE_DIRECT_URL: this is another database than that of DATABASE_URL")


def _connect(url: str) -> "psycopg.Connection[TupleRow]":
    return psycopg.connect(
        without_driver(url), connect_timeout=ANSWER_SECONDS, autocommit=True, prepare_threshold=None
    )


def _identity(url: str) -> TupleRow | None:
    """Return what tells a database from all others."""
    with _connect(url) as connection, connection.transaction():  # a pooler may have none
        return connection.execute(
            "SELECT system_identifier, current_database() FROM pg_control_system()"
        ).fetchone()


def _shares_sessions(url: str) -> bool:
    """Return whether two open connections get the same session, or one connection two of them."""
    with _connect(url) as first, _connect(url) as second:
        seen: list[set[int]] = [set(), set()]
        for _ in range(SESSION_LOOKS):
            for mine, connection in zip(seen, (first, second), strict=True):
                mine.update(pid for (pid,) in connection.execute("SELECT pg_backend_pid()"))
    return [len(pids) for pids in seen] != [1, 1] or seen[0] == seen[1]


def _check_redis(url: str) -> None:
    try:
        with Redis.from_url(
            url, socket_timeout=ANSWER_SECONDS, socket_connect_timeout=ANSWER_SECONDS
        ) as redis:
            redis.ping()
    except (RedisError, ValueError) as error:
        problem = f"{_first_line(error)}: start Redis, or correct the address"
        raise ConfigurationError(f"REDIS_URL: {problem}") from None


def _check_gpu() -> None:
    # torch would take hundreds of megabytes of this process for as long as the deployment runs.
    if subprocess.run([sys.executable, "-c", FINDS_A_GPU], check=False, stderr=subprocess.DEVNULL).returncode:
        raise ConfigurationError(
            "HEADRACE_DEVICE: cuda, but torch finds no GPU here: install a torch that is built for it, "
            "or set HEADRACE_DEVICE=cpu"
        )


def _first_line(error: Exception) -> str:
    return (str(error).strip() or repr(error)).splitlines()[0]
