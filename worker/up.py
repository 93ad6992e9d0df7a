"""Run the Procfile: `release` first, then every process, and restart each one that dies.

`python -m worker.embedded python -m worker.up [PROCESS...]`. Honcho and similar tools stop everything
when one process ends; here a worker that crashed must come back.
"""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TextIO

from worker.child import with_parent
from worker.settings import settings

ROOT = Path(__file__).resolve().parent.parent
PROCFILE_LINE = re.compile(r"^(?P<name>[A-Za-z0-9_-]+):\s*(?P<command>.+)$", re.MULTILINE)
# Long enough for a worker to drain (HEADRACE_DRAIN_SECONDS) and hand back its shards.
STOP_SECONDS = 30.0
RESTART_SECONDS = (0.5, 15.0)  # the first wait, and the longest
STEADY_SECONDS = 30.0  # a process that ran this long starts again without a longer wait


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


@dataclass(slots=True)
class Supervised:
    """Keeps one process of the Procfile running until `stopping` is set."""

    name: str
    command: str
    stopping: threading.Event
    output: TextIO
    process: "subprocess.Popen[str] | None" = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def keep_running(self) -> None:
        """Run the command again and again, passing its output on line by line."""
        shortest, longest = RESTART_SECONDS
        wait = shortest
        while True:
            with self._lock:
                if self.stopping.is_set():
                    return
                self.process = start(self.command, output=subprocess.PIPE, dies_with_us=True)
            started_at = time.monotonic()
            assert self.process.stdout is not None  # noqa: S101 - it is a pipe
            with self.process.stdout as lines:
                for line in lines:
                    self.say(line.rstrip())
            status = self.process.wait()
            if self.stopping.is_set():
                return
            wait = shortest if time.monotonic() - started_at > STEADY_SECONDS else min(wait * 2, longest)
            self.say(f"ended with status {status}; starting it again in {wait:g} s")
            self.stopping.wait(wait)

    def send(self, signum: signal.Signals) -> None:
        """Signal the process if it runs."""
        with self._lock:
            if self.process is not None and self.process.poll() is None:
                self.process.send_signal(signum)

    def say(self, line: str) -> None:
        """Print a line under this process's name."""
        self.output.write(f"{time.strftime('%H:%M:%S')} {self.name:<10} | {line}\n")
        self.output.flush()


def up(commands: dict[str, str], stopping: threading.Event, output: TextIO = sys.stdout) -> None:
    """Keep the commands running until `stopping` is set, then stop them all."""
    processes = [Supervised(name, command, stopping, output) for name, command in commands.items()]
    threads = [threading.Thread(target=process.keep_running) for process in processes]
    for thread in threads:
        thread.start()
    stopping.wait()
    for process in processes:
        process.send(signal.SIGTERM)
    deadline = time.monotonic() + STOP_SECONDS
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    for process in processes:
        process.send(signal.SIGKILL)
    for thread in threads:
        thread.join()


def main(names: Iterable[str]) -> int:
    """Run `release`, then the named processes (default: all) until SIGTERM or Ctrl-C."""
    commands = read_procfile(ROOT / "Procfile")
    release = start(commands.pop("release"), dies_with_us=True)
    if status := release.wait():
        return status
    chosen = list(names) or list(commands)
    if unknown := sorted(set(chosen) - set(commands)):
        sys.stderr.write(f"not in the Procfile: {', '.join(unknown)} (it has {', '.join(commands)})\n")
        return 2
    if "web" in chosen:
        _tell_where()
    if "flower" in chosen and (credentials := os.environ.get("FLOWER_BASIC_AUTH")):
        _tell_flower_login(credentials)
    stopping = threading.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, lambda *_: stopping.set())
    up({name: commands[name] for name in chosen}, stopping)
    return 0


def _tell_where() -> None:
    config = settings()
    host = "127.0.0.1" if config.host in {"0.0.0.0", "::"} else config.host  # noqa: S104 - to call, not bind
    url = f"http://{host}:{config.port}"
    sys.stdout.write(
        f"the API is coming up at {url}: documentation at {url}/docs, dashboard at {url}/dashboard\n"
    )
    sys.stdout.flush()


def _tell_flower_login(credentials: str) -> None:
    user, _, shown = credentials.partition(":")
    if not sys.stdout.isatty():  # a log is no place for a password
        shown = "in FLOWER_BASIC_AUTH or the file flower_password of the data directory"
    sys.stdout.write(f"Flower's user is {user}, its password: {shown}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
