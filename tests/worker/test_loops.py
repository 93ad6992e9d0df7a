"""A loop waits while its service is away, and ends its process when anything else goes wrong."""

import logging
import subprocess
import sys
from threading import Event

import pytest

from tests.fixtures.deployment import eventually
from worker.loops import EXIT_LOOP_FAILED, FIRST_SECONDS, LONGEST_SECONDS, Loop

THREAD = """
import logging, threading
from worker.loops import Loop

logging.basicConfig()
turns = iter([lambda: None, lambda: 1 / 0])
Loop("leases", lambda: next(turns)(), threading.Event()).start()
threading.Event().wait()
"""
OWN_THREAD = THREAD.replace(".start()", ".run()")
TASK = """
import asyncio, logging
from worker.loops import start_task

logging.basicConfig()

async def fail():
    1 / 0

async def main():
    task = start_task("leases", fail, away=(OSError,))
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.parametrize("code", [THREAD, OWN_THREAD, TASK], ids=["thread", "own thread", "task"])
def test_an_unexpected_error_ends_the_process_and_the_log_says_which_loop_and_why(code: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == EXIT_LOOP_FAILED
    (line,) = [line for line in ended.stderr.splitlines() if line.startswith("CRITICAL")]
    assert "the loop leases failed, so this process ends: ZeroDivisionError: division by zero" in line


class Turns:
    """Turns of a loop: each raises the next of some errors, or returns; the last one stops the loop."""

    def __init__(self, *errors: Exception | None) -> None:
        self.stopping = Event()
        self._errors = list(errors)

    def __call__(self) -> None:
        error = self._errors.pop(0)
        if not self._errors:
            self.stopping.set()
        if error is not None:
            raise error


def waits(turns: Turns, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Run a loop that never sleeps; return how long it would have."""
    waited: list[float] = []

    def wait(seconds: float) -> bool:
        waited.append(seconds)
        return False

    monkeypatch.setattr(turns.stopping, "wait", wait)
    Loop("leases", turns, turns.stopping, every_seconds=7.0, away=(ConnectionError,)).run()
    return waited


def test_it_waits_longer_each_time_while_its_service_is_away(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    away = [ConnectionError("refused\nby the server")] * 6
    waited = waits(Turns(*away, None, *away[:1], None), monkeypatch)
    assert waited[:2] == [FIRST_SECONDS, 2 * FIRST_SECONDS]
    assert waited[5:] == [LONGEST_SECONDS, 7.0, FIRST_SECONDS, 7.0], "after a good turn it is patient again"
    assert [record.getMessage() for record in caplog.records] == [
        "leases: no answer, trying again: refused",
        "leases: goes on",
    ] * 2


def test_an_error_of_a_loop_whose_process_stops_does_not_end_it(caplog: pytest.LogCaptureFixture) -> None:
    turns = Turns(ValueError("late"))
    loop = Loop("leases", turns, turns.stopping).start()
    eventually(lambda: not loop.is_running)
    assert "the loop leases failed while its process stops" in caplog.text
