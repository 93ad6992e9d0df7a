"""Threads that each play a client until they are told to stop."""

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Clients:
    """So many threads of one kind."""

    stopping: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def start(self, count: int, name: str, play: Callable[[random.Random], None]) -> None:
        """Start them, each with random numbers of its own, the same for the same name."""
        for number in range(count):
            rng = random.Random(f"{name} {number}")
            self._threads.append(threading.Thread(target=play, args=(rng,), daemon=True))
            self._threads[-1].start()

    def stop(self) -> None:
        """Let each finish what it is at."""
        self.stopping.set()
        for thread in self._threads:
            thread.join()
