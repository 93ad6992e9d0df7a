"""Run a server as a child: start it, restart it at the same address when it dies, and stop it."""

import logging
import signal
import subprocess
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from worker.child import with_parent

logger = logging.getLogger(__name__)

# Seconds between restarts. A server that has run for STEADY_SECONDS gets all of them again.
WAITS = (0.1, 0.5, 1.0, 2.0, 4.0)
STEADY_SECONDS = 10.0
START_SECONDS = 300.0  # time to replay a long log
STOP_SECONDS = 30.0
LOOK_SECONDS = 0.03


class ServerError(Exception):
    """A server does not run and is not restarted. The message says why and where to look."""


class Server(ABC):
    """Keeps one server running, in a thread of its own."""

    name: str
    stop_signals: tuple[signal.Signals, ...] = (signal.SIGTERM, signal.SIGKILL)  # the gentlest first
    user: str | None = None

    def __init__(self, url: str, log: Path) -> None:
        self.url = url
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._answered = threading.Event()
        self._stopping = threading.Event()
        self._failure: str | None = None

    @contextmanager
    def running(self, interrupted: threading.Event, on_failure: Callable[[str], None]) -> Iterator[str]:
        """Yield the server's URL once it answers, and keep the server running until the block ends.

        `on_failure` gets the reason, from another thread, when the server is given up after that.

        Raises:
            ServerError: it does not start, or `interrupted` was set meanwhile.

        """
        thread = threading.Thread(
            target=self._keep_running, args=(on_failure,), name=self.name.lower(), daemon=True
        )
        thread.start()
        try:
            while not self._answered.wait(LOOK_SECONDS):
                if self._failure is not None:
                    raise ServerError(self._failure)
                if interrupted.is_set():
                    raise ServerError(f"interrupted while {self.name} started")
            yield self.url
        finally:
            self._stopping.set()
            for signum in self.stop_signals:
                self._send(signum)
                thread.join(STOP_SECONDS)
                if not thread.is_alive():
                    break

    @abstractmethod
    def command(self) -> list[str]:
        """Return the command line."""

    def settings(self) -> bytes:
        """Return the bytes that the server reads on its standard input."""
        return b""

    @abstractmethod
    def answers(self) -> bool:
        """Return whether the server answers a client."""

    @abstractmethod
    def clear_the_way(self) -> None:
        """Stop a server that an earlier parent left on the same data; called before each start.

        Raises:
            ServerError: it does not stop.

        """

    def _keep_running(self, on_failure: Callable[[str], None]) -> None:
        try:
            self._try_again_and_again()
        except Exception as error:
            logger.debug("%s", self.name, exc_info=True)
            self._failure = str(error)
            if self._answered.is_set():
                on_failure(self._failure)

    def _try_again_and_again(self) -> None:
        waits = iter(WAITS)
        while not self._stopping.is_set():
            self.clear_the_way()
            process = self._start()
            if process is None:
                return
            if self._wait_until_it_answers(process):
                if self._answered.is_set():
                    logger.warning("%s answers again", self.name)
                self._answered.set()
            answered_at = time.monotonic()
            status = process.wait()
            if self._stopping.is_set():
                return
            if time.monotonic() - answered_at > STEADY_SECONDS:
                waits = iter(WAITS)
            wait = next(waits, None)
            if wait is None:
                raise ServerError(
                    f"{self.name} ended {len(WAITS) + 1} times, the last time with status {status}, "
                    f"and is not started again: see {self._log}"
                )
            if self._answered.is_set():
                logger.warning("%s ended with status %d; starting it again in %g s", self.name, status, wait)
            self._stopping.wait(wait)

    def _start(self) -> "subprocess.Popen[bytes] | None":
        gentle = self.stop_signals[0]
        with self._lock, self._log.open("ab") as log:
            if self._stopping.is_set():
                return None
            process = subprocess.Popen(
                with_parent(self.command(), gentle, user=self.user),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                process_group=0,
            )
            self._process = process
        assert process.stdin is not None  # noqa: S101 - it is a pipe
        with suppress(BrokenPipeError), process.stdin as stdin:  # a server that has ended says why in its log
            stdin.write(self.settings())
        return process

    def _wait_until_it_answers(self, process: "subprocess.Popen[bytes]") -> bool:
        deadline = time.monotonic() + START_SECONDS
        while not self._stopping.is_set() and process.poll() is None:
            if self.answers():
                return True
            if time.monotonic() > deadline:
                self._send(self.stop_signals[-1])
                raise ServerError(f"{self.name} does not answer after {START_SECONDS:g} s: see {self._log}")
            self._stopping.wait(LOOK_SECONDS)
        return False

    def _send(self, signum: signal.Signals) -> None:
        with self._lock:
            if self._process is not None and self._process.poll() is None:
                self._process.send_signal(signum)
