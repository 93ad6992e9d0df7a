"""The deployment: every process of the Procfile, each with links of its own, started again when it dies."""

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from tests.faults.harness.link import Link, Links
from tests.faults.harness.services import DATABASE, Postgres, RedisServer
from tests.fixtures.deployment import eventually, free_port
from worker.up import ROOT, read_procfile, start
from worker.webhooks.sealing import new_key
from worker.webhooks.signing import new_secret

READY_SECONDS = 300
RESTART_SECONDS = 0.5
WEBHOOK_SECONDS = 2.0
# Process -> the Procfile's name for it, and how to tell two workers apart.
PROCESSES = {
    "web": "web",
    "gpu1": "gpu",
    "gpu2": "gpu",
    "callbacks": "callbacks",
    "dispatcher1": "dispatcher",
    "dispatcher2": "dispatcher",
    "files": "files",
}
GPUS = ("gpu1", "gpu2")


@dataclass(slots=True)
class Member:
    """One process and its ways out."""

    name: str
    command: str
    environment: dict[str, str]
    postgres: Link
    redis: Link
    log: Path
    process: "subprocess.Popen[str] | None" = None
    exits: list[int] = field(default_factory=list)

    def start(self) -> None:
        """Start it."""
        with self.log.open("a") as log:
            self.process = start(self.command, output=log, environment=self.environment)

    def send(self, signum: signal.Signals) -> None:
        """Signal it if it runs."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signum)

    @property
    def links(self) -> tuple[Link, Link]:
        """Its ways to Postgres and to Redis."""
        return self.postgres, self.redis

    @property
    def worker(self) -> str:
        """What a Celery worker calls itself in the database."""
        return f"{self.name}@{os.uname().nodename}"


@dataclass(slots=True)
class Cluster:
    """The whole deployment."""

    directory: Path
    postgres: Postgres
    redis: RedisServer
    members: dict[str, Member]
    client: httpx.Client
    _stopping: threading.Event = field(default_factory=threading.Event)

    def is_healthy(self) -> bool:
        """Whether every process runs and a batch sent now would be run."""
        try:
            return self.client.get("/ready").status_code == 200
        except httpx.HTTPError:
            return False

    def api_pid(self) -> int | None:
        """Return the number of the process whose death breaks connections, if it runs."""
        process = self.members["web"].process
        return None if process is None else process.pid

    def supervise(self) -> None:
        """Start whatever has died again, after a moment, until told to stop."""
        while not self._stopping.wait(0.1):
            for member in self.members.values():
                status = None if member.process is None else member.process.poll()
                if status is not None:
                    member.exits.append(status)
                    member.process = None
                    threading.Timer(RESTART_SECONDS, self._restart, (member,)).start()

    def _restart(self, member: Member) -> None:
        if not self._stopping.is_set():
            member.start()

    def stop(self) -> None:
        """Stop every process, however it stands."""
        self._stopping.set()
        time.sleep(RESTART_SECONDS * 2)
        for member in self.members.values():
            for link in member.links:
                link.heal()
            member.send(signal.SIGCONT)
            member.send(signal.SIGTERM)
        for member in self.members.values():
            if member.process is not None:
                try:
                    member.process.wait(30)
                except subprocess.TimeoutExpired:
                    member.process.kill()
                    member.process.wait()


def settings(directory: Path, model: Path, port: int, secret: str) -> dict[str, str]:
    """Return the environment of a deployment in a directory, but for where its servers are."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
    return kept | {
        "PORT": str(port),
        "HEADRACE_AUTH": "off",
        "HEADRACE_DATA_DIR": str(directory / "data"),
        "HEADRACE_MODEL": str(model),
        "HEADRACE_THREADS": "1",
        "HEADRACE_MAX_NUM_SEQUENCES": "8",
        "HEADRACE_SHARD_SIZE": "8",
        "HEADRACE_SHARDS_IN_FLIGHT": "3",
        "HEADRACE_CHECKPOINT_TOKENS": "16",
        "HEADRACE_DRAIN_SECONDS": "0.5",
        "HEADRACE_WEBHOOK_SECRET": secret,
        "HEADRACE_SECRET_KEY": new_key(),
        "HEADRACE_WEBHOOK_TIMEOUT_SECONDS": str(WEBHOOK_SECONDS),
        "HEADRACE_TEST_FACTS": str(directory / "facts"),
    }


@contextlib.contextmanager
def running(directory: Path, model: Path) -> Iterator[tuple[Cluster, str]]:
    """Run a deployment in a directory; yield it and the secret that its callbacks are signed with."""
    postgres, redis = Postgres(directory / "postgres"), RedisServer(directory / "redis")
    for folder in (postgres.directory, redis.directory, directory / "facts", directory / "logs"):
        folder.mkdir()
    secret = new_secret()
    with contextlib.ExitStack() as stack:
        postgres.create()
        stack.callback(postgres.stop, signal.SIGINT)
        redis.start()
        stack.callback(redis.stop)
        links = stack.enter_context(Links().running())
        port = free_port()
        shared = settings(directory, model, port, secret)
        commands = read_procfile(ROOT / "Procfile")
        members = {
            name: _member(name, commands[kind], shared, links, postgres, redis, directory / "logs")
            for name, kind in PROCESSES.items()
        }
        release = start(commands["release"], output=subprocess.PIPE, environment=members["web"].environment)
        said, _ = release.communicate(timeout=READY_SECONDS)
        if release.returncode:
            raise RuntimeError(said)
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
            cluster = Cluster(directory, postgres, redis, members, client)
            supervisor = threading.Thread(target=cluster.supervise, daemon=True)
            for member in members.values():
                member.start()
            supervisor.start()
            stack.callback(cluster.stop)
            eventually(cluster.is_healthy, seconds=READY_SECONDS, what="ready")
            yield cluster, secret


def _member(
    name: str,
    command: str,
    shared: dict[str, str],
    links: Links,
    postgres: Postgres,
    redis: RedisServer,
    logs: Path,
) -> Member:
    to_postgres, to_redis = links.to(postgres.port), links.to(redis.port)
    environment = shared | {
        "DATABASE_URL": f"postgresql://postgres@127.0.0.1:{to_postgres.port}/{DATABASE}",
        "REDIS_URL": f"redis://127.0.0.1:{to_redis.port}/0",
        "HEADRACE_TEST_NAME": name,
    }
    if name in GPUS:
        command = command.replace("worker.tasks.run_shard", "tests.faults.harness.watched_worker")
        command = command.replace("gpu@%h", f"{name}@%h")
    return Member(name, command, environment, to_postgres, to_redis, logs / f"{name}.log")
