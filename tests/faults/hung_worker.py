"""A gpu worker whose engine hangs in the first Step of real work, for the fault tests."""

import threading

from worker.engine.engine import Engine
from worker.engine.scheduling.plan import StepOutput
from worker.tasks.run_shard import app, run_shard

__all__ = ["app", "run_shard"]

_step = Engine.step


def _hang(engine: Engine, guard: threading.Condition | None = None) -> StepOutput:
    if "warm-up" not in engine._generations:
        threading.Event().wait()
    return _step(engine, guard)


Engine.step = _hang  # type: ignore[method-assign]
