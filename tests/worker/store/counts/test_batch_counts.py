from sqlalchemy import func, select

from tests.fixtures.batches import held, run_to_the_end, submit
from worker.contract.states import BatchStatus, Lane
from worker.store.batches import batches
from worker.store.counts import batch_counts
from worker.store.database.session import Store
from worker.store.rows.counts import BatchCountRow
from worker.store.shards import control


def counts(store: Store) -> dict[str, int]:
    with store.transaction() as session:
        return {str(status): count for status, count in batch_counts.by_status(session).items() if count}


def num_rows(store: Store) -> int:
    with store.transaction() as session:
        return session.scalar(select(func.count()).select_from(BatchCountRow)) or 0


def cancelled(store: Store) -> str:
    batch_id = submit(store)
    with store.transaction() as session:
        batches.cancel(session, batch_id)
    return batch_id


def test_every_status_is_counted(store: Store) -> None:
    submit(store, num_requests=2)
    run_to_the_end(store, held(store, 1))
    cancelled(store)
    submit(store, num_requests=2)
    submit(store, num_requests=2, lane=Lane.INTERACTIVE)
    assert counts(store) == {"completed": 1, "cancelled": 1, "pending": 1}


def test_a_deleted_batch_is_counted_no_more(store: Store) -> None:
    kept, deleted = cancelled(store), cancelled(store)
    with store.transaction() as session:
        control.remove(session, deleted)
    assert kept
    assert counts(store) == {"cancelled": 1}


def test_folding_changes_no_count_of_any_tenant(store: Store) -> None:
    ours, theirs = store.of_tenant("ours"), store.of_tenant("theirs")
    for _ in range(batch_counts.FOLD_FROM // 2):
        cancelled(ours)
        cancelled(theirs)
    submit(theirs)
    before = [counts(one) for one in (store, ours, theirs)]
    assert before[1:] == [{"cancelled": 50}, {"cancelled": 50, "pending": 1}]
    with store.transaction() as session:
        batch_counts.fold(session)
    assert num_rows(store) == 2
    assert [counts(one) for one in (store, ours, theirs)] == before


def test_what_is_being_folded_waits_for_nobody(store: Store) -> None:
    for _ in range(batch_counts.FOLD_FROM):
        cancelled(store)
    with store.transaction() as first:
        batch_counts.fold(first)
        with store.transaction() as second:
            batch_counts.fold(second)
        cancelled(store)
    assert counts(store) == {BatchStatus.CANCELLED: batch_counts.FOLD_FROM + 1}
