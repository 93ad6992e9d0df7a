"""A gpu worker that writes down what it claims, and whether its engine's Blocks add up.

Nothing of the product is replaced: each wrapper calls what it wraps. Its clock is as wrong as it is told. A
Step takes as long as one of a larger model, so that there is something in the middle of which to break it.
"""

import json
import os
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from sqlalchemy.orm import Session

from worker.contract.models import ServedModel
from worker.engine.engine import Engine
from worker.engine.requests.errors import IntegrityError
from worker.engine.scheduling.plan import StepOutput
from worker.store.shards import shards
from worker.store.shards.shards import Claim
from worker.tasks.run_shard import app, run_shard

__all__ = ["app", "run_shard"]

CHECK_EVERY = 32  # Steps
STEP_SECONDS = 0.005

_directory = Path(os.environ["HEADRACE_TEST_FACTS"])
_facts = (_directory / f"{os.getpid()}.jsonl").open("a", buffering=1)
_step, _claim, _time = Engine.step, shards.claim, time.time
_shift = [0.0]


def _note(**fact: Any) -> None:
    _facts.write(json.dumps(fact) + "\n")


def _watched_step(engine: Engine, guard: threading.Condition | None = None) -> StepOutput:
    time.sleep(STEP_SECONDS)
    output = _step(engine, guard)
    pool = engine._scheduler.block_pool
    is_idle = not (engine.has_unfinished or engine.is_running)
    if is_idle or engine.stats.steps % CHECK_EVERY == 0:
        try:
            engine.check_integrity()
        except IntegrityError as error:
            _note(broken=str(error))
    if is_idle and pool.num_free_blocks != pool.num_blocks:
        _note(broken=f"idle with {pool.num_free_blocks} of {pool.num_blocks} Blocks free")
    return output


def _watched_claim(
    session: Session, shard_id: int, *, worker: str, lease: timedelta, model: ServedModel | None = None
) -> Claim | None:
    claimed_at = _time()
    held = _claim(session, shard_id, worker=worker, lease=lease, model=model)
    if held is not None:
        ids = [request.id for request in held.requests]
        resumed = sum(request.partial_output is not None for request in held.requests)
        _note(claimed=shard_id, fence=held.fence, at=claimed_at, worker=worker, requests=ids, resumed=resumed)
    return held


def _follow_the_clock() -> None:
    """Take over by how much this process's clock is to be wrong."""
    file = _directory / f"clock.{os.environ['HEADRACE_TEST_NAME']}"
    while True:
        if file.exists():
            _shift[0] = float(file.read_text() or 0)
        time.sleep(0.2)


threading.Thread(target=_follow_the_clock, daemon=True).start()
time.time = lambda: _time() + _shift[0]
Engine.step = _watched_step  # type: ignore[method-assign]
shards.claim = _watched_claim
