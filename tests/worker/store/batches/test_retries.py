"""A retry runs the failed requests of an ended batch as a new batch."""

from sqlalchemy import text

from tests.fixtures.batches import LEASE, held, result, submit
from worker.contract.states import Lane
from worker.store.batches import retries
from worker.store.database.session import Store
from worker.store.shards import shards
from worker.store.shards.shards import Progress
from worker.values.outcomes import Outcome


def test_nobody_waits_for_the_retry_of_interactive_work(store: Store) -> None:
    """An interactive batch with a shard of the other lane would be shown in no list."""
    batch_id = submit(store, num_requests=1, lane=Lane.INTERACTIVE)
    claimed = held(store, 1)
    with store.transaction() as session:
        failed = result(claimed.requests[0].id, outcome=Outcome.FAILED)
        shards.save(session, [Progress(claimed, [failed], 0, is_last=True)], lease=LEASE)
    with store.transaction() as session:
        assert retries.retry(session, batch_id, with_cancelled=False, shard_size=1) is not None
        lanes = "SELECT b.lane, s.lane FROM batches b JOIN shards s ON s.batch_id = b.id ORDER BY s.id"
        assert session.execute(text(lanes)).all() == [("interactive", "interactive"), ("batch", "batch")]
