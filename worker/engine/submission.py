"""Gives callers a handle on requests that the engine's thread runs. Safe to use from any thread."""

import threading
import time
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

from worker.engine.requests.errors import EngineError
from worker.engine.requests.generation import Answer
from worker.values.delta import Delta

AnswerT = TypeVar("AnswerT", bound=Answer)


class Submission(Generic[AnswerT]):
    """Handle on requests submitted together: takes their outcomes, cancels them, and counts their tokens.

    Call `take(timeout=5.0)` until `is_done`.
    """

    def __init__(
        self,
        num_requests: int,
        cancel: Callable[["Submission[Any]", tuple[Hashable, ...]], None],
        on_delta: Callable[[Delta], None] | None = None,
    ) -> None:
        self.on_delta = on_delta  # called on the engine's thread, so it must be quick
        self.num_output_tokens = 0  # grows each Step; one writer, so a read needs no lock
        self.num_open = num_requests  # requests whose outcome has not arrived; changed under the lock
        self._cancel = cancel
        self._arrived = threading.Condition()
        self._outcomes: list[AnswerT] = []  # arrived, not yet taken
        self._least = 1  # outcomes for which `take` waits
        self._error: EngineError | None = None
        self._is_woken = False

    @property
    def is_done(self) -> bool:
        """True once every outcome has arrived and been taken."""
        return not self.num_open and not self._outcomes

    def take(self, timeout: float, *, least: int = 1) -> list[AnswerT]:
        """Return the outcomes that arrived since the last call.

        Waits up to `timeout` seconds for `least` of them, or for the last one. Returns what there is, perhaps
        nothing, when time is up or after `wake`. Once the engine's thread has ended and every outcome that
        arrived was taken, raises EngineFailedError or EngineStoppedError. One thread may take at a time.
        """
        deadline = time.monotonic() + timeout
        with self._arrived:
            self._least = least
            while not (self._has_enough or self._is_woken) and self._error is None:
                left = deadline - time.monotonic()
                if left <= 0 or not self._arrived.wait(left):
                    break
            self._is_woken = False
            taken, self._outcomes = self._outcomes, []
            if not taken and self.num_open and self._error is not None:
                raise self._error
            return taken

    @property
    def _has_enough(self) -> bool:
        return len(self._outcomes) >= self._least or not self.num_open

    def wake(self) -> None:
        """Make the current `take`, or else the next one, return without waiting."""
        with self._arrived:
            self._is_woken = True
            self._arrived.notify_all()

    def cancel(self, *request_ids: Hashable) -> None:
        """Cancel all open requests, or only those with these ids.

        Their outcomes arrive as cancelled; a Completion has the text so far.
        """
        self._cancel(self, request_ids)

    def expect(self, num_requests: int) -> None:
        """Count further requests as open; called by the EngineThread."""
        with self._arrived:
            self.num_open += num_requests

    def deliver(self, outcomes: list[AnswerT]) -> None:
        """Hand over outcomes; called by the engine's thread."""
        with self._arrived:
            self._outcomes += outcomes
            self.num_open -= len(outcomes)
            if self._has_enough:  # a thread that wakes takes Python's lock from the engine's
                self._arrived.notify_all()

    def fail(self, error: EngineError) -> None:
        """Make `take` raise this error; called by the engine's thread as it ends."""
        with self._arrived:
            self._error = error
            self._arrived.notify_all()
