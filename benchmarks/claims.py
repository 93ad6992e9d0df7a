"""Times claims of shards in a database that may hold any number of pending requests."""

import time
from datetime import timedelta

from benchmarks.polling import percentile_ms
from worker.contract.models import ServedModel, identify, weight_format
from worker.settings import settings
from worker.store.database.session import Store
from worker.store.requests import models
from worker.store.shards import shards

NUM_CLAIMS = 300
LEASE = timedelta(seconds=60)


def claim_ms(store: Store) -> dict[str, float]:
    """Claim shards of the configured model in turn and release each at once; time only the claims.

    Raises:
        RuntimeError: too few shards are ready.

    """
    ready = "SELECT id FROM shards WHERE state = 'ready' ORDER BY priority DESC, id"
    with store.engine.connect() as connection:
        shard_ids = connection.exec_driver_sql(ready).scalars().fetchmany(NUM_CLAIMS)
    config = settings()
    served = ServedModel(identify(config.model), weight_format(config.model), config.dtype)
    with store.transaction() as session:
        served = models.register(session, served)
    seconds = []
    for shard_id in shard_ids:
        started = time.perf_counter()
        with store.transaction() as session:
            held = shards.claim(session, shard_id, worker="bench", lease=LEASE, model=served)
        seconds.append(time.perf_counter() - started)
        if held is None or not held.requests:
            raise RuntimeError(f"shard {shard_id} could not be claimed")
        with store.transaction() as session:
            shards.release(session, held)
    if len(seconds) < NUM_CLAIMS:
        raise RuntimeError(f"only {len(seconds)} shards are ready")
    return {f"claim_p{percent}_ms": percentile_ms(seconds, percent) for percent in (50, 99)}
