"""Define the task `run_shard`: run one shard. `celery -A worker.tasks.run_shard worker -Q gpu`."""

import logging

from worker.contract.messages import RUN_SHARD
from worker.queue.celery_app import app
from worker.settings import settings
from worker.store.database.session import DATABASE_AWAY
from worker.tasks import lifecycle

__all__ = ["app", "run_shard"]

logger = logging.getLogger(__name__)

app.conf.worker_concurrency = settings().shards_in_flight
app.steps["worker"].add(lifecycle.EngineStep)


@app.task(name=RUN_SHARD)
def run_shard(shard_id: int) -> None:
    """Run a shard on this process's engine, for one ticket."""
    try:
        ending = lifecycle.runner().run(shard_id)
    except DATABASE_AWAY as error:  # the shard gets another ticket, or its lease runs out
        logger.warning("shard %s was not claimed: %s", shard_id, str(error).splitlines()[0])
    else:
        logger.debug("ticket for shard %s: %s", shard_id, ending)
