"""Reads how long new Results of a batch took, as readings of histograms by lane and priority."""

from collections import Counter

from sqlalchemy import ARRAY, Double, cast, func, select
from sqlalchemy.orm import Session

from worker.contract.distributions import BOUNDS, BUCKETS, SUM, reading_name
from worker.contract.meters import Readings
from worker.contract.usage import Latency, PriorityClass
from worker.store.requests.new_results import IS_NEW
from worker.store.rows.batches import BatchRow
from worker.store.rows.requests import RequestRow, ResultRow
from worker.store.rows.shards import ShardRow
from worker.values.outcomes import Outcome

# Begin and end of each latency; both may be unknown.
ENDS = {
    Latency.TOTAL: (BatchRow.created_at, ResultRow.created_at),
    Latency.CLAIMED: (ShardRow.claimed_at, ResultRow.created_at),
    Latency.QUEUE: (BatchRow.created_at, ResultRow.started_at),
    Latency.FIRST_TOKEN: (BatchRow.created_at, ResultRow.first_token_at),
}
CLASSES = {-1: PriorityClass.LOW, 0: PriorityClass.NORMAL, 1: PriorityClass.HIGH}
HALF_A_TICK = 5e-7  # times are whole microseconds: taking this away puts a bound into its own bucket

_SECONDS = [cast(func.extract("epoch", ended - began), Double) for began, ended in ENDS.values()]
_BUCKETS = [func.width_bucket(one - HALF_A_TICK, cast(list(BOUNDS), ARRAY(Double))) for one in _SECONDS]
# The model is a group, not a condition: Postgres would expect so few shards that it begins with all of them.
_GROUPS = (ShardRow.model_fingerprint, func.sign(ShardRow.priority))
_COUNTS = (
    select(*_GROUPS, func.count(), *_BUCKETS, *map(func.sum, _SECONDS))
    .select_from(ResultRow)
    .join(RequestRow, RequestRow.id == ResultRow.request_id)
    .join(ShardRow, ShardRow.id == RequestRow.shard_id)
    .join(BatchRow, BatchRow.id == ResultRow.batch_id)
    .where(IS_NEW, ResultRow.outcome != Outcome.CANCELLED)
    .group_by(*_GROUPS, *_BUCKETS)
)


def read(session: Session, batch: BatchRow, *, after: int, model: str | None = None) -> Readings:
    """Return the latencies of a batch's Results after this sequence number, except cancelled ones.

    `model` leaves out the requests of others in a mixed batch.
    """
    rows = session.execute(_COUNTS, {"of_batch": batch.id, "num_before": after})
    readings: Counter[str] = Counter()
    for fingerprint, which, count, *found in rows:
        if model not in {None, fingerprint}:
            continue
        labels = (batch.lane, CLASSES[int(which)])
        for latency, bucket, total in zip(ENDS, found, found[len(ENDS) :], strict=False):
            if bucket is not None:
                readings[reading_name(latency, labels, BUCKETS[bucket])] += count
                readings[reading_name(latency, labels, SUM)] += total
    return readings
