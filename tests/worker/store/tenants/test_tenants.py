"""A tenant's store shows a tenant's rows, whatever the query."""

from sqlalchemy import delete, func, select, update

from tests.fixtures.batches import submit
from worker.contract.states import BatchStatus
from worker.store.batches import batch_views, batches, idempotency
from worker.store.counts import batch_counts
from worker.store.database.session import Store
from worker.store.rows.batches import BatchRow


def test_a_batch_is_there_for_its_tenant_only(store: Store) -> None:
    ours, theirs = store.of_tenant("ours"), store.of_tenant("theirs")
    batch_id = submit(ours)
    for seen_by, is_there in ((ours, True), (theirs, False), (store, True)):
        with seen_by.transaction() as session:
            assert (batch_views.get(session, batch_id) is not None) is is_there
            assert (batches.lock(session, batch_id) is not None) is is_there
            assert sum(batch_counts.by_status(session).values()) == is_there
    with theirs.transaction() as session:
        assert batches.cancel(session, batch_id) is False
    with ours.transaction() as session:
        assert batches.cancel(session, batch_id) is True


def test_no_kind_of_statement_reaches_over(store: Store) -> None:
    batch_id = submit(store.of_tenant("ours"))
    with store.of_tenant("theirs").transaction() as session:
        assert session.get(BatchRow, batch_id) is None
        assert session.scalar(select(func.count()).select_from(BatchRow)) == 0
        assert session.scalar(select(func.max(BatchRow.num_requests))) is None
        assert session.scalar(select(select(BatchRow.id).exists())) is False
        cte = select(BatchRow.id).cte("found")
        assert session.scalar(select(func.count()).select_from(cte)) == 0
        session.execute(update(BatchRow).values(priority=9))
        session.execute(delete(BatchRow))
    with store.transaction() as session:
        view = batch_views.get(session, batch_id)
    assert view is not None
    assert (view.priority, view.status) == (0, BatchStatus.PENDING)


def test_two_tenants_may_use_one_idempotency_key(store: Store) -> None:
    for tenant in ("ours", "theirs"):
        scoped = store.of_tenant(tenant)
        batch_id = submit(scoped)
        with scoped.transaction() as session:
            assert idempotency.find(session, "key", tenant) is None
            idempotency.remember(session, "key", tenant, batch_id)
        with scoped.transaction() as session:
            assert idempotency.find(session, "key", tenant) == batch_id
