"""Name the processes that send heartbeats, and describe what each is built of."""

import platform
from enum import StrEnum
from importlib.metadata import version

from worker.contract.messages import CALLBACKS_QUEUE, GPU_QUEUE

DISPATCHER = "dispatcher"
FILES = "files"
SWITCHING = "switching"  # runs a gpu worker for one of several models
PROCESSES = (GPU_QUEUE, CALLBACKS_QUEUE, DISPATCHER, FILES, SWITCHING)
# Keys in a process's info.
BUILD = "build"
CORES = "cores"  # that it may use
CAPACITY = "capacity"  # the capacity type that a gpu worker runs on
SPOT = "spot"
MODELS = "models"  # that a switching process may load: their ModelState by fingerprint

BEAT_SECONDS = 5.0


class ModelState(StrEnum):
    """What workers have of a model."""

    LOADED = "loaded"
    LOADING = "loading"
    UNLOADED = "unloaded"  # a worker loads it when its turn comes
    UNSERVED = "unserved"  # no worker serves it


def build(**more: str) -> dict[str, str]:
    """Return the versions that this process runs, and `more` of them."""
    return {"version": version("headrace"), "python": platform.python_version(), **more}
