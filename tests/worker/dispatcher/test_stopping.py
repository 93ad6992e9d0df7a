import subprocess
import sys

import pytest

from tests.fixtures.deployment import STOP_SECONDS

# SIGTERM comes while a weak reference's callback runs: Python drops, and prints, what a handler raises there.
STOPPED_AS_AN_OBJECT_ENDS = """
import os, runpy, signal, weakref
from worker.dispatcher.dispatcher import Dispatcher

class Thing:
    pass

def sweep(self):
    thing = Thing()
    reference = weakref.ref(thing, lambda _: os.kill(os.getpid(), signal.SIGTERM))
    del thing

Dispatcher.sweep = sweep
runpy.run_module("worker.dispatcher", run_name="__main__")
"""


@pytest.mark.usefixtures("store")
def test_a_dispatcher_stops_whatever_it_is_doing_when_it_is_told() -> None:
    stopped = subprocess.run(
        [sys.executable, "-c", STOPPED_AS_AN_OBJECT_ENDS],
        stderr=subprocess.PIPE,
        text=True,
        timeout=STOP_SECONDS,
        check=False,
    )
    assert (stopped.returncode, stopped.stderr) == (0, "")
