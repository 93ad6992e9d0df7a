"""The deployment as `make up` starts it: one tree of processes, with servers that it keeps running itself."""

import contextlib
import getpass
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import psycopg
from redis import Redis

from tests.faults.harness.cluster import READY_SECONDS, Cluster, settings
from tests.faults.harness.services import Postgres, RedisServer
from tests.fixtures.deployment import eventually, free_port
from worker.settings import DATABASE_URL_FILE
from worker.up import ROOT
from worker.webhooks.signing import new_secret

PROCESSES = ("web", "gpu", "callbacks", "dispatcher", "files")
STOP_SECONDS = 60


@dataclass(slots=True)
class EmbeddedPostgres(Postgres):
    """The Postgres in a data directory, which somebody else starts."""

    url: str = ""

    def connect(self, database: str = "") -> "psycopg.Connection[Any]":
        """Return a connection of the harness's own."""
        del database  # it has one
        self.url = self.url or (self.directory / DATABASE_URL_FILE).read_text()
        return psycopg.connect(self.url, autocommit=True, connect_timeout=5, application_name="harness")

    @property
    def pid_files(self) -> list[Path]:
        """The files that say which process it is."""
        data = self.directory / "postgres"
        return [data / "postmaster.pid", *data.glob(".s.PGSQL.*.lock")]

    def kill(self) -> None:
        """SIGKILL it."""
        psutil.Process(int(self.pid_files[0].read_text().split()[0])).kill()


@dataclass(slots=True)
class EmbeddedRedis(RedisServer):
    """The Redis in a data directory, which somebody else starts."""

    def client(self) -> "Redis":
        """Return a client."""
        return Redis.from_url((self.directory / "redis" / "url").read_text(), socket_timeout=5)

    def kill(self) -> None:
        """SIGKILL it."""
        with self.client() as client:
            psutil.Process(client.info("server")["process_id"]).kill()


@dataclass(slots=True, kw_only=True)
class EmbeddedCluster(Cluster):
    """A deployment of which only the first process is started, and everything can be killed."""

    postgres: EmbeddedPostgres
    redis: EmbeddedRedis
    environment: dict[str, str]
    process: "subprocess.Popen[bytes] | None" = None

    def start(self) -> None:
        """Start it."""
        embedded = [sys.executable, "-m", "worker.embedded", sys.executable, "-m", "worker.up", *PROCESSES]
        with (self.directory / "log").open("a") as log:
            self.process = subprocess.Popen(
                embedded, env=self.environment, cwd=ROOT, stdout=log, stderr=log, process_group=0
            )

    def kill(self) -> None:
        """SIGKILL every process of it, the first one last; return when none is left.

        A process that is still being torn down keeps its connections: a client would use one, and its answer
        would be counted against the next API.
        """
        assert self.process is not None
        first, self.process = self.process, None  # no API lives from here on
        top = psutil.Process(first.pid)
        killed = [*reversed(top.children(recursive=True)), top]
        for one in killed:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        first.wait()
        _, alive = psutil.wait_procs(killed, timeout=STOP_SECONDS)
        assert not alive, alive

    @contextlib.contextmanager
    def innocent(self) -> Iterator["subprocess.Popen[bytes]"]:
        """Run a process that has the number of the Postgres that was killed."""
        user = "pgserver" if getpass.getuser() == "root" else None  # as Postgres itself
        with subprocess.Popen(["sleep", "600"], user=user) as process:
            for file in self.postgres.pid_files:
                _, _, rest = file.read_text().partition("\n")
                file.write_text(f"{process.pid}\n{rest}")
            yield process
            process.kill()

    def api_pid(self) -> int | None:
        """Return the number of the first process: the API dies with it only."""
        return None if self.process is None else self.process.pid

    def stop(self) -> None:
        """Stop it."""
        if self.process is not None:
            self.process.terminate()
            self.process.wait(STOP_SECONDS)


@contextlib.contextmanager
def running(directory: Path, model: Path) -> Iterator[tuple[EmbeddedCluster, str]]:
    """Run a deployment in a directory; yield it and the secret that its callbacks are signed with."""
    data = directory / "data"
    for folder in (data, directory / "facts"):
        folder.mkdir()
    port, secret = free_port(), new_secret()
    environment = settings(directory, model, port, secret) | {"DATABASE_URL": "", "REDIS_URL": ""}
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
        cluster = EmbeddedCluster(
            directory=directory,
            postgres=EmbeddedPostgres(data),
            redis=EmbeddedRedis(data),
            members={},
            client=client,
            environment=environment,
        )
        cluster.start()
        try:
            eventually(cluster.is_healthy, seconds=READY_SECONDS, what="ready")
            yield cluster, secret
        finally:
            cluster.stop()
