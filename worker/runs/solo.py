"""Let many users share a resource, or one use it alone. Must not know the resource."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

LOOK_SECONDS = 0.5


class Solo:
    """Admits many users together, or one alone; a waiting solo user goes before later arrivals."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._num_together = 0
        self._num_wanting = 0  # users that are alone, or wait to be
        self._is_taken = False  # by a solo user

    @contextmanager
    def enter(self, *, alone: bool, give_up: Callable[[], bool]) -> Iterator[bool]:
        """Wait to enter, then yield True; yield False if `give_up` returns True first.

        `give_up` may take its time and may raise: nobody waits for it, and an error leaves no trace here.
        """
        is_in = False
        with self._changed:
            self._num_wanting += alone
        try:
            is_in = self._wait(alone, give_up)
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
            with self._changed:
                if not (self._is_taken or (self._num_together if alone else self._num_wanting)):
                    self._is_taken = alone
                    self._num_together += not alone
                    return True
                self._changed.wait(LOOK_SECONDS)
        return False
