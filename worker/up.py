"""Run the Procfile: `release` first, if the database needs it, then every process, again when one dies.

`python -m worker.embedded python -m worker.up [PROCESS...]`. Honcho and similar tools stop everything
when one process ends; here a worker that crashed must come back. A process that its configuration does not
let run ends everything: it would not come back.
"""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Literal, TextIO

import httpx
import psycopg

from worker.child import with_parent
from worker.contract.models import identify
from worker.contract.processes import SWITCHING
from worker.cores import divide_cores, numa_nodes
from worker.loops import Loop
from worker.preflight import ConfigurationError, check, without_driver
from worker.settings import EXIT_CONFIGURATION, Settings, settings
from worker.telemetry import under_name

ROOT = Path(__file__).resolve().parent.parent
PROCFILE_LINE = re.compile(r"^(?P<name>[A-Za-z0-9_-]+):\s*(?P<command>.+)$", re.MULTILINE)
REVISION = re.compile(r'^revision = "(.+)"$', re.MULTILINE)
DOWN_REVISION = re.compile(r'^down_revision = "(.+)"$', re.MULTILINE)
HAND_BACK_SECONDS = 20.0  # the longest that a worker saves and hands back its shards, after it has drained
# No result waits for these: they start when the gpu worker, which takes longest, is ready, or after so long.
LATER, LATER_SECONDS = frozenset({"callbacks", "files", "flower"}), 12.0
READY_LINE = re.compile(r"@\S+ ready\.")  # of Celery
RESTART_SECONDS = (0.5, 15.0)  # the first wait, and the longest
STEADY_SECONDS = 30.0  # a process that ran this long starts again without a longer wait
LOOK_SECONDS = 0.2  # between two looks whether everything answers
ANSWER_SECONDS = 5.0  # the longest that one answer takes
# These start the Procfile's `gpu`: as often as it is needed, or for one of several models.
AUTOSCALE, AUTOSCALE_COMMAND = "autoscale", "python -m worker.autoscale"
SWITCHING_COMMAND = "python -m worker.switching"


def read_procfile(path: Path) -> dict[str, str]:
    """Return the commands of a Procfile by process name."""
    return {line["name"]: line["command"] for line in PROCFILE_LINE.finditer(path.read_text())}


def start(
    command: str,
    *,
    output: int | IO[str] | None = None,
    environment: Mapping[str, str] = os.environ,
    dies_with_us: bool = False,
) -> "subprocess.Popen[str]":
    """Start a Procfile command in a process group of its own, with this interpreter's tools first.

    `output` is where its standard output and error go, as `subprocess.Popen` takes it. With `dies_with_us`
    the command dies when the calling thread ends.
    """
    tools = Path(sys.executable).parent
    path = f"{tools}{os.pathsep}{environment.get('PATH', '')}"
    shell = ["/bin/sh", "-c", f"exec {command}"]
    return subprocess.Popen(
        with_parent(shell) if dies_with_us else shell,
        env={**environment, "PATH": path, "PYTHONUNBUFFERED": "1"},
        cwd=ROOT,
        stdout=output,
        stderr=None if output is None else subprocess.STDOUT,
        text=True,
        errors="replace",
        process_group=0,
    )


@dataclass(slots=True, eq=False)
class Supervised:
    """Keeps one process of the Procfile running until `stopping` is set."""

    name: str
    command: str
    stopping: threading.Event
    output: TextIO
    log_format: Literal["text", "json"] = "text"
    ready: threading.Event = field(default_factory=threading.Event)  # set when a Celery worker says so
    after: threading.Event | None = None  # of another process, which starts before this one
    variables: Mapping[str, str] = field(default_factory=dict)  # of its environment, beside ours
    cpus: Collection[int] = ()  # on which it may run; none: as we may
    process: "subprocess.Popen[str] | None" = None
    refusal: str | None = None  # what is wrong with the configuration
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def keep_running(self) -> None:
        """Run the command again and again, passing its output on line by line."""
        if self.cpus:
            os.sched_setaffinity(0, self.cpus)  # of this thread: what it starts inherits them
        shortest, longest = RESTART_SECONDS
        wait = shortest
        latest = time.monotonic() + LATER_SECONDS
        while self.after is not None and not self.after.is_set() and time.monotonic() < latest:
            if self.stopping.wait(LOOK_SECONDS):
                return
        while True:
            started_at = time.monotonic()
            status, said = self.run()
            if self.stopping.is_set():
                return
            if status == EXIT_CONFIGURATION:
                self.refusal = said
                self.stopping.set()
                return
            wait = shortest if time.monotonic() - started_at > STEADY_SECONDS else min(wait * 2, longest)
            self.say(f"ended with status {status}; starting it again in {wait:g} s")
            self.stopping.wait(wait)

    def run(self) -> tuple[int, str]:
        """Run the command once, unless `stopping` is set; return its exit status and its last line."""
        said = ""
        with self._lock:
            if self.stopping.is_set():
                return 0, said
            environment = {**os.environ, **self.variables}
            self.process = start(
                self.command, output=subprocess.PIPE, environment=environment, dies_with_us=True
            )
        assert self.process.stdout is not None  # noqa: S101 - it is a pipe
        with self.process.stdout as lines:
            for line in lines:
                said = line.rstrip()
                self.say(said)
                if READY_LINE.search(said):
                    self.ready.set()
        return self.process.wait(), said

    def send(self, signum: signal.Signals) -> None:
        """Signal the process if it runs."""
        with self._lock:
            if self.process is not None and self.process.poll() is None:
                self.process.send_signal(signum)

    def say(self, line: str) -> None:
        """Print a line under this process's name."""
        self.output.write(f"{under_name(line, self.name, self.log_format)}\n")
        self.output.flush()


def up(
    commands: dict[str, str],
    stopping: threading.Event,
    output: TextIO = sys.stdout,
    log_format: Literal["text", "json"] = "text",
    *,
    cpus: Sequence[Collection[int]] = ((),),
) -> str | None:
    """Keep the commands running until `stopping` is set, then stop them all.

    There are as many `gpu` processes as `cpus` has groups, each on the CPUs of one; an empty group has all.
    A process whose configuration is wrong sets `stopping`; then return what it said.
    """
    its = _numbered(commands["gpu"], cpus) if "gpu" in commands else ()
    workers = [Supervised(name, line, stopping, output, log_format, cpus=group) for name, line, group in its]
    others = [
        Supervised(name, line, stopping, output, log_format)
        for name, line in commands.items()
        if name != "gpu"
    ]
    for late in others:
        if workers and late.name in LATER:
            late.after = workers[0].ready
    processes = [*workers, *others]
    loops = [Loop(process.name, process.keep_running, stopping).start() for process in processes]
    stopping.wait()
    stop_all(processes, loops)
    return next((process.refusal for process in processes if process.refusal is not None), None)


def _numbered(line: str, cpus: Sequence[Collection[int]]) -> Iterator[tuple[str, str, Collection[int]]]:
    """Yield the name, the command and the CPUs of each gpu worker."""
    for number, group in enumerate(cpus, start=1):
        name = "gpu" if len(cpus) == 1 else f"gpu-{number}"
        yield name, line.replace("gpu@", f"{name}@"), group  # what Celery and Flower call it


def stop_all(processes: Sequence[Supervised], loops: Sequence[Loop]) -> None:
    """Send SIGTERM to processes whose `stopping` is set, and SIGKILL to those that take too long to end."""
    for process in processes:
        process.send(signal.SIGTERM)
    deadline = time.monotonic() + settings().drain_seconds + HAND_BACK_SECONDS
    for loop in loops:
        loop.join(max(0.0, deadline - time.monotonic()))
    for process in processes:
        process.send(signal.SIGKILL)
    for loop in loops:
        loop.join()


def main(names: Iterable[str]) -> int:
    """Run `release`, then the named processes until SIGTERM or Ctrl-C.

    Default: all. Where gpu workers are scaled, `autoscale` takes the place of `gpu`; where one serves several
    models, `switching` does.
    """
    commands = read_procfile(ROOT / "Procfile")
    release = commands.pop("release")
    config = settings()
    commands |= {AUTOSCALE: AUTOSCALE_COMMAND, SWITCHING: SWITCHING_COMMAND}
    chosen = list(names) or without_other_starters(commands, config)
    if unknown := sorted(set(chosen) - set(commands)):
        sys.stderr.write(f"not in the Procfile: {', '.join(unknown)} (it has {', '.join(commands)})\n")
        return 2
    try:
        check(config, chosen)
        cpus = gpu_cpus(config, chosen)
    except ConfigurationError as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_CONFIGURATION
    # Processes run in another directory.
    os.environ["HEADRACE_MODEL"] = str(config.model.resolve())
    os.environ["HEADRACE_MODELS"] = ",".join(str(model.resolve()) for model in config.models)
    if config.embedding_model is not None:
        os.environ["HEADRACE_EMBEDDING_MODEL"] = str(config.embedding_model.resolve())
    stopping = threading.Event()
    if not is_migrated(config.direct_url) and (status := _release(release, config)):
        return status
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, lambda *_: stopping.set())
    if "web" in chosen:
        Loop("ready", partial(_tell_when_ready, config, chosen, stopping), stopping).start()
    if (advice := advise(config, chosen)) is not None:
        _print(advice, config)
    kept = {name: commands[name] for name in chosen}
    refusal = up(kept, stopping, log_format=config.log_format, cpus=cpus)
    if refusal is not None:
        sys.stderr.write(f"{refusal}\n")
        return EXIT_CONFIGURATION
    return 0


def gpu_cpus(config: Settings, processes: Collection[str]) -> list[set[int]]:
    """Return the CPUs of each gpu worker; an empty set: all. Raises ConfigurationError."""
    if config.cpu_workers == 1 or not {"gpu", AUTOSCALE, SWITCHING} & set(processes):
        return [set()]
    name = "HEADRACE_CPU_WORKERS"
    if config.device != "cpu":
        raise ConfigurationError(f"{name}: for HEADRACE_DEVICE=cpu only: unset it")
    if config.models or config.max_workers is not None:
        others = "HEADRACE_MODELS or HEADRACE_MAX_WORKERS"
        raise ConfigurationError(f"{name}: does not go with {others}: unset one of them")
    try:
        return divide_cores(config.cpu_workers)
    except ValueError as error:
        raise ConfigurationError(f"{name}: cannot start {config.cpu_workers} workers: {error}") from None


def advise(config: Settings, processes: Collection[str]) -> str | None:
    """Return what would make these processes faster on this machine, if anything."""
    num_nodes = len(numa_nodes())
    if "gpu" not in processes or config.device != "cpu" or config.cpu_workers >= num_nodes:
        return None
    return (
        f"cores and memory are in {num_nodes} NUMA nodes: HEADRACE_CPU_WORKERS={num_nodes} starts a "
        "gpu worker in each (docs/models.md)"
    )


def without_other_starters(names: Iterable[str], config: Settings) -> list[str]:
    """Leave out what starts gpu workers in another way than the settings say."""
    starter = "gpu" if config.max_workers is None else AUTOSCALE
    if config.models:
        starter = SWITCHING
    return [name for name in names if name == starter or name not in {"gpu", AUTOSCALE, SWITCHING}]


def is_migrated(database_url: str, directory: Path = ROOT / "migrations" / "versions") -> bool:
    """Return whether the newest migration is applied: asking Alembic would take a restart two seconds."""
    texts = [path.read_text() for path in directory.glob("*.py")]
    earlier = {found[1] for text in texts if (found := DOWN_REVISION.search(text))}
    newest = {found[1] for text in texts if (found := REVISION.search(text))} - earlier
    try:
        with psycopg.connect(without_driver(database_url), connect_timeout=int(ANSWER_SECONDS)) as connection:
            applied = connection.execute("SELECT version_num FROM alembic_version").fetchall()
    except psycopg.Error:
        return False  # no migration has run yet; Alembic says what else is wrong
    return {version for (version,) in applied} == newest


def _release(command: str, config: Settings) -> int:
    """Run the migrations; return their exit status."""
    if config.log_format == "text":
        return start(command, dies_with_us=True).wait()
    return Supervised("release", command, threading.Event(), sys.stdout, config.log_format).run()[0]


def _tell_when_ready(config: Settings, processes: Collection[str], stopping: threading.Event) -> None:
    """Print one line once the API, a gpu worker and Flower answer."""
    host = "127.0.0.1" if config.host in {"0.0.0.0", "::"} else config.host  # noqa: S104 - to call, not bind
    api = f"http://[{host}]:{config.port}" if ":" in host else f"http://{host}:{config.port}"
    flower = f"http://127.0.0.1:{config.flower_port}"
    with httpx.Client(timeout=ANSWER_SECONDS, trust_env=False) as client:
        while not _is_ready(client, api, flower if "flower" in processes else None):
            if stopping.wait(LOOK_SECONDS):
                return
    line = f"ready: API {api}, documentation {api}/docs, dashboard {api}/dashboard, "
    if "flower" in processes:
        line += f"Flower {flower}{_flower_login(config)}, "
    line += f"model {identify(config.model).label}"
    _print(line, config)
    stopping.wait()


def _print(line: str, config: Settings) -> None:
    """Print a line of our own among those of the processes."""
    sys.stdout.write(f"{line if config.log_format == 'text' else under_name(line, 'up', 'json')}\n")
    sys.stdout.flush()


def _is_ready(client: httpx.Client, api: str, flower: str | None) -> bool:
    """Return whether the API would run a batch, and Flower answers anything: its pages need a password."""
    try:
        if flower is not None:
            client.get(flower)
        return client.get(f"{api}/ready").is_success
    except httpx.TransportError:
        return False


def _flower_login(config: Settings) -> str:
    """Return who may look at Flower; a log is no place for the password."""
    user, separator, password = os.environ.get("FLOWER_BASIC_AUTH", "").partition(":")
    kept = config.data_dir / "flower_password"
    where = kept if kept.exists() and kept.read_text() == password else "FLOWER_BASIC_AUTH"
    return f" (user {user}, password in {where})" if separator else ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
