"""Name the processes that send heartbeats, and describe what each is built of."""

import platform
from importlib.metadata import version

from worker.contract.messages import CALLBACKS_QUEUE, GPU_QUEUE

DISPATCHER = "dispatcher"
FILES = "files"
PROCESSES = (GPU_QUEUE, CALLBACKS_QUEUE, DISPATCHER, FILES)
# Keys in a process's info.
BUILD = "build"
CORES = "cores"  # that it may use
CAPACITY = "capacity"  # the capacity type that a gpu worker runs on
SPOT = "spot"

BEAT_SECONDS = 5.0


def build(**more: str) -> dict[str, str]:
    """Return the versions that this process runs, and `more` of them."""
    return {"version": version("headrace"), "python": platform.python_version(), **more}
