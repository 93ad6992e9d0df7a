"""Who may use something together, and who must have it alone. Knows nothing of what it is."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

LOOK_SECONDS = 0.5


class Solo:
    """Lets many in together, or one alone; who wants to be alone goes before those that come later."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._num_together = 0
        self._num_wanting = 0  # to be alone, or who are
        self._is_taken = False  # by one who is alone

    @contextmanager
    def enter(self, *, alone: bool, give_up: Callable[[], bool]) -> Iterator[bool]:
        """Wait to come in, then yield True; False once `give_up` says so first."""
        with self._changed:
            self._num_wanting += alone
            is_in = self._wait(alone, give_up)
            if is_in and alone:
                self._is_taken = True
            elif is_in:
                self._num_together += 1
        try:
            yield is_in
        finally:
            with self._changed:
                self._num_wanting -= alone
                if is_in and alone:
                    self._is_taken = False
                elif is_in:
                    self._num_together -= 1
                self._changed.notify_all()

    def _wait(self, alone: bool, give_up: Callable[[], bool]) -> bool:
        while not give_up():
            if not (self._is_taken or (self._num_together if alone else self._num_wanting)):
                return True
            self._changed.wait(LOOK_SECONDS)
        return False
