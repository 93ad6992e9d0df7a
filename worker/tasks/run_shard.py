"""`run_shard`: run one shard on this process's engine. `celery -A worker.tasks.run_shard worker -Q gpu`."""

import logging

from worker.contract.messages import RUN_SHARD
from worker.queue.celery_app import app
from worker.settings import settings
from worker.tasks import lifecycle

__all__ = ["app", "run_shard"]

logger = logging.getLogger(__name__)

app.conf.worker_concurrency = settings().shards_in_flight
app.steps["worker"].add(lifecycle.EngineStep)


@app.task(name=RUN_SHARD)
def run_shard(shard_id: int) -> None:
    """Run a shard, if it is ready and nobody else has it."""
    ending = lifecycle.runner().run(shard_id)
    logger.info("shard %s: %s", shard_id, ending)
