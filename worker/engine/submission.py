"""The caller's side of work given to the engine's thread. Safe to use from any thread."""

import threading
import time
from collections.abc import Callable

from worker.engine.errors import EngineError
from worker.engine.step import Completion


class Submission:
    """Requests submitted together, and what has become of them so far."""

    def __init__(self, num_requests: int, cancel: Callable[["Submission"], None]) -> None:
        self.num_output_tokens = 0  # grows each Step; one writer, so a read needs no lock
        self.num_open = num_requests  # requests whose Completion has not arrived; likewise
        self._cancel = cancel
        self._arrived = threading.Condition()
        self._completions: list[Completion] = []  # arrived and not taken
        self._error: EngineError | None = None

    @property
    def is_done(self) -> bool:
        """Whether every Completion has arrived and been taken."""
        return not self.num_open and not self._completions

    def take(self, timeout: float) -> list[Completion]:
        """Return the Completions that arrived since the last call.

        Waits up to `timeout` seconds for at least one; returns none when time is up or all were taken. Once
        the engine's thread has ended, and what had arrived was taken, raises EngineFailedError or
        EngineStoppedError.
        """
        deadline = time.monotonic() + timeout
        with self._arrived:
            while not self._completions and self.num_open and self._error is None:
                left = deadline - time.monotonic()
                if left <= 0 or not self._arrived.wait(left):
                    break
            taken, self._completions = self._completions, []
            if not taken and self.num_open and self._error is not None:
                raise self._error
            return taken

    def cancel(self) -> None:
        """End what is still open; its Completions arrive as cancelled, with the text so far."""
        self._cancel(self)

    def deliver(self, completions: list[Completion]) -> None:
        """Hand over Completions; called by the engine's thread."""
        with self._arrived:
            self._completions += completions
            self.num_open -= len(completions)
            self._arrived.notify_all()

    def fail(self, error: EngineError) -> None:
        """Wake whoever waits with an error; called by the engine's thread as it ends."""
        with self._arrived:
            self._error = error
            self._arrived.notify_all()
