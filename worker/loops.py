"""Run the background loops of a process. Must not know what a loop does.

A loop waits while its service is away, and ends its process on any other error, since a process that lives
on without one of its loops fails silently. The parent of the process starts it again.
"""

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from threading import Event, Thread
from typing import Self

logger = logging.getLogger(__name__)

EXIT_LOOP_FAILED = 70  # EX_SOFTWARE of sysexits.h
# The first wait for a service that is away, and the longest: shorter than a lease, so that none is lost.
FIRST_SECONDS, LONGEST_SECONDS = 0.1, 1.0


@dataclass(slots=True, eq=False)
class Loop:
    """Takes one turn after the other, until `stopping` is set.

        Loop("leases", renew, stopping, every_seconds=1.5, away=DATABASE_AWAY).start()

    Args:
        name: Name of the loop in the log, and of its thread.
        turn: Does the work of one turn. It may last as long as the process.
        stopping: Ends the loop after the turn.
        every_seconds: Pause between two turns.
        away: Errors that mean "try again later". Any other error ends the process.
        niceness: Added to the niceness of the thread (on Linux, of this thread alone).

    """

    name: str
    turn: Callable[[], object]
    stopping: Event
    every_seconds: float = 0.0
    away: tuple[type[Exception], ...] = ()
    niceness: int = 0
    _thread: Thread | None = field(default=None, init=False)

    def start(self) -> Self:
        """Run in a thread of its own."""
        self._thread = Thread(target=self.run, name=self.name, daemon=True)
        self._thread.start()
        return self

    def run(self) -> None:
        """Run in the calling thread."""
        backoff = _Backoff(self.name)
        try:
            os.nice(self.niceness)
            while not self.stopping.is_set():
                backoff.turn_begins()
                try:
                    self.turn()
                except self.away as error:
                    self.stopping.wait(backoff.after(error))
                else:
                    backoff.turn_ended()
                    self.stopping.wait(self.every_seconds)
        except BaseException as error:
            if not self.stopping.is_set():
                end_process(self.name, error)
            logger.exception("the loop %s failed while its process stops", self.name)

    def join(self, seconds: float | None = None) -> None:
        """Wait for the end of the thread, if it was started."""
        if self._thread is not None:
            self._thread.join(seconds)

    @property
    def is_running(self) -> bool:
        """Return whether the thread was started and has not ended."""
        return self._thread is not None and self._thread.is_alive()


def start_task(
    name: str, turn: Callable[[], Awaitable[object]], *, away: tuple[type[Exception], ...]
) -> "asyncio.Task[None]":
    """Take turns by the rules of `Loop`, in a task of the running event loop, until the task is cancelled."""

    async def run() -> None:
        backoff = _Backoff(name)
        try:
            while True:
                backoff.turn_begins()
                try:
                    await turn()
                except away as error:
                    await asyncio.sleep(backoff.after(error))
                else:
                    backoff.turn_ended()
        except Exception as error:  # noqa: BLE001 - it is logged, and the process ends
            end_process(name, error)

    return asyncio.create_task(run(), name=name)


def end_process(name: str, error: BaseException) -> None:
    """End this process, since one of its loops failed, with a line that names the loop and the error."""
    logger.critical(
        "the loop %s failed, so this process ends: %s: %s", name, type(error).__name__, error, exc_info=error
    )
    # Not sys.exit: that would end only this thread.
    os._exit(EXIT_LOOP_FAILED)


@dataclass(slots=True)
class _Backoff:
    """The waits of one loop while its service is away. Logs when it goes and when it comes back."""

    name: str
    _seconds: float = 0.0  # 0: the service was there
    _began_at: float = 0.0

    def turn_begins(self) -> None:
        """Start the clock of a turn."""
        self._began_at = time.monotonic()

    def turn_ended(self) -> None:
        """Note that the service is there."""
        if self._seconds:
            logger.info("%s: goes on", self.name)
        self._seconds = 0.0

    def after(self, error: Exception) -> float:
        """Return how long to wait after this error."""
        if time.monotonic() - self._began_at > LONGEST_SECONDS:
            self._seconds = 0.0  # the turn had worked for a while
        level = logging.DEBUG if self._seconds else logging.WARNING
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        logger.log(level, "%s: no answer, trying again: %s", self.name, reason)
        self._seconds = min(self._seconds * 2 or FIRST_SECONDS, LONGEST_SECONDS)
        return self._seconds
