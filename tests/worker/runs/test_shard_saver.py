import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace

import pytest
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from tests.fixtures.batches import LEASE, held, result, submit
from worker.runs import shard_saver
from worker.runs.shard_saver import ShardSaver
from worker.store.batches import batch_views
from worker.store.database.session import Store
from worker.store.shards.shards import AfterSave, Claim, Progress


class CountingStore(Store):
    """Counts transactions of a store; fails those it is told to."""

    def __init__(self, store: Store) -> None:
        self.engine, self._sessions = store.engine, store._sessions
        self._autocommit, self._has_pooler = store._autocommit, store._has_pooler
        self.tenant_id, self._prices = store.tenant_id, store._prices
        self.transactions = 0
        self.failures = 0

    @contextmanager
    def transaction(self) -> Iterator[Session]:
        self.transactions += 1
        if self.failures:
            self.failures -= 1
            raise OperationalError("save", None, Exception("the database is restarting"))
        with super().transaction() as session:
            yield session


@pytest.fixture
def counting(store: Store) -> CountingStore:
    return CountingStore(store)


def save_together(store: Store, claims: list[Claim]) -> list[AfterSave | Exception]:
    saver = ShardSaver(store)

    def save(claim: Claim) -> AfterSave | Exception:
        progress = Progress(claim, [result(claim.requests[0].id)], running_tokens=claim.shard_id)
        try:
            return saver.save(progress, lease=LEASE, most=len(claims))
        except OperationalError as error:
            return error

    with ThreadPoolExecutor(len(claims)) as pool:
        return list(pool.map(save, claims))


def test_shards_that_meet_share_a_transaction(store: Store, counting: CountingStore) -> None:
    batch_id = submit(store, num_requests=8, shard_size=2)
    claims = [held(store, shard) for shard in (1, 2, 3, 4)]
    assert save_together(counting, claims) == [AfterSave.CONTINUE] * 4
    assert counting.transactions < 4
    with store.transaction() as session:
        view = batch_views.get(session, batch_id)
    assert view is not None
    assert view.num_completed == 4
    assert view.running_tokens == 1 + 2 + 3 + 4


def test_a_save_waits_for_nobody_if_all_have_come(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_saver, "GATHER_SECONDS", threading.TIMEOUT_MAX)
    submit(store, num_requests=4, shard_size=2)
    claims = [held(store, shard) for shard in (1, 2)]
    assert save_together(store, claims[:1]) == [AfterSave.CONTINUE]
    assert save_together(store, claims) == [AfterSave.CONTINUE] * 2


def test_batches_are_saved_apart_and_a_lost_shard_writes_nothing(
    store: Store, counting: CountingStore
) -> None:
    first, second = (submit(store, num_requests=4, shard_size=2) for _ in range(2))
    claims = [held(store, shard) for shard in (1, 2, 3)]
    claims[1] = replace(claims[1], fence=claims[1].fence + 1)
    assert save_together(counting, claims) == [AfterSave.CONTINUE, AfterSave.LOST, AfterSave.CONTINUE]
    with store.transaction() as session:
        done = [batch_views.get(session, batch_id) for batch_id in (first, second)]
    assert [view.num_completed for view in done if view is not None] == [1, 1]


def test_each_gets_the_error_of_its_transaction(store: Store, counting: CountingStore) -> None:
    submit(store, num_requests=4, shard_size=2)
    claims = [held(store, shard) for shard in (1, 2)]
    counting.failures = 2
    assert all(isinstance(outcome, OperationalError) for outcome in save_together(counting, claims))
    counting.failures = 0  # where the two met, one transaction failed for both
    assert save_together(counting, claims) == [AfterSave.CONTINUE] * 2
