"""Define the task `run_shard`: run one shard. `celery -A worker.tasks.run_shard worker -Q gpu`."""

import logging
from typing import Any

from celery.exceptions import Ignore

from worker.contract.messages import RUN_SHARD
from worker.queue.celery_app import app
from worker.settings import settings
from worker.store.database.session import DATABASE_AWAY
from worker.tasks import lifecycle
from worker.tasks.shard_ends import show_end
from worker.tasks.task_events import TaskState, task_events

__all__ = ["app", "run_shard"]

logger = logging.getLogger(__name__)

app.conf.worker_concurrency = settings().shards_in_flight
app.steps["worker"].add(lifecycle.EngineStep)


@app.task(name=RUN_SHARD, bind=True)
def run_shard(task: Any, shard_id: int) -> None:
    """Run a shard on this process's engine, for one ticket."""
    runner = lifecycle.runner()
    with task_events.show(RUN_SHARD, task_id=task.request.id) as view:
        try:
            ending = runner.run(shard_id)
        except DATABASE_AWAY as error:  # the shard gets another ticket, or its lease runs out
            logger.warning("shard %s was not claimed: %s", shard_id, str(error).splitlines()[0])
            view.end(TaskState.RETRY, "Postgres does not answer")
        else:
            logger.debug("ticket for shard %s: %s", shard_id, ending)
            show_end(view, ending, runner.store)
    raise Ignore  # or Celery would call it a success, whatever became of the shard
