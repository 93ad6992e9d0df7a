import threading
from collections.abc import Sequence
from datetime import timedelta

from sqlalchemy import text

from tests.fixtures.batches import LEASE, claim, held, result, run_to_the_end, submit
from worker.contract.states import BatchStatus
from worker.store.batches import batch_views
from worker.store.database.session import Store
from worker.store.requests import result_views
from worker.store.shards import leases, shards
from worker.store.shards.shards import AfterSave, Claim, Progress
from worker.values.results import NewResult

EXPIRED = timedelta(seconds=-1)


def save(
    store: Store, claimed: Claim, results: Sequence[NewResult] = (), lease: timedelta | None = LEASE
) -> AfterSave:
    with store.transaction() as session:
        return shards.save(session, [Progress(claimed, results, running_tokens=5)], lease=lease)[0]


def return_expired(store: Store, max_attempts: int = 5) -> int:
    with store.transaction() as session:
        lapsed = leases.expired(session, limit=10)
    returned = 0
    for shard_id, batch_id in lapsed:
        with store.transaction() as session:
            returned += leases.return_expired(session, shard_id, batch_id, max_attempts=max_attempts)
    return returned


def outcomes(store: Store, batch_id: str) -> list[str | None]:
    with store.transaction() as session:
        return [row.error_code for row in result_views.page(session, batch_id, after=0, limit=100)]


def test_only_one_of_many_claims_wins(store: Store) -> None:
    submit(store, num_requests=2)
    won: list[Claim] = []
    barrier = threading.Barrier(8)

    def race() -> None:
        barrier.wait()
        if (claimed := claim(store, 1)) is not None:
            won.append(claimed)

    threads = [threading.Thread(target=race) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [claimed.fence for claimed in won] == [1]


def test_a_stale_holder_is_fenced(store: Store) -> None:
    batch_id = submit(store, num_requests=2)
    stale = held(store, 1, lease=EXPIRED)
    assert return_expired(store) == 1
    fresh = held(store, 1)
    assert fresh.fence == stale.fence + 1
    assert save(store, stale, [result(stale.requests[0].id)]) is AfterSave.LOST
    last = Progress(stale, [], running_tokens=0, is_last=True)
    with store.transaction() as session:
        assert shards.save(session, [last], lease=EXPIRED) == [AfterSave.LOST]
    assert outcomes(store, batch_id) == []
    run_to_the_end(store, fresh)
    assert outcomes(store, batch_id) == [None, None]


def test_a_slow_holder_keeps_its_work_until_somebody_else_starts(store: Store) -> None:
    batch_id = submit(store, num_requests=2)
    slow = held(store, 1, lease=EXPIRED)
    assert return_expired(store) == 1
    assert save(store, slow, [result(slow.requests[0].id)]) is AfterSave.CONTINUE
    assert claim(store, 1) is None
    run_to_the_end(store, slow)
    assert outcomes(store, batch_id) == [None, None]


def test_finished_requests_are_not_run_again(store: Store) -> None:
    submit(store, num_requests=2)
    first = held(store, 1, lease=EXPIRED)
    save(store, first, [result(first.requests[0].id)], lease=None)
    return_expired(store)
    assert [request.id for request in held(store, 1).requests] == [first.requests[1].id]


def test_saving_the_same_result_again_is_harmless(store: Store) -> None:
    batch_id = submit(store, num_requests=2)
    claimed = held(store, 1)
    once = [result(claimed.requests[0].id)]
    assert save(store, claimed, once) is AfterSave.CONTINUE
    assert save(store, claimed, once) is AfterSave.CONTINUE
    assert outcomes(store, batch_id) == [None]
    with store.transaction() as session:
        view = batch_views.get(session, batch_id)
    assert view is not None
    assert (view.num_completed, view.output_tokens, view.running_tokens) == (1, 7, 5)


def test_a_model_may_say_nul(store: Store) -> None:
    batch_id = submit(store, num_requests=2)
    claimed = held(store, 1)
    save(store, claimed, [result(claimed.requests[0].id, output="a\x00b")])
    with store.transaction() as session:
        assert result_views.outputs(session, batch_id) == ["a\N{REPLACEMENT CHARACTER}b", None]


def test_a_release_is_not_an_attempt(store: Store) -> None:
    submit(store, num_requests=2)
    for _ in range(10):
        claimed = held(store, 1)
        assert claimed.attempt == 1
        with store.transaction() as session:
            shards.release(session, claimed)


def test_two_sweeps_at_once_return_a_lease_once(store: Store) -> None:
    submit(store, num_requests=2)
    held(store, 1, lease=EXPIRED)
    counts: list[int] = []
    threads = [threading.Thread(target=lambda: counts.append(return_expired(store))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(counts) == 1


def test_concurrent_saves_of_many_shards_leave_a_gapless_sequence(store: Store) -> None:
    batch_id = submit(store, num_requests=64, shard_size=4)
    threads = [
        threading.Thread(target=lambda i=i: run_to_the_end(store, held(store, i))) for i in range(1, 17)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with store.transaction() as session:
        sequence = session.scalars(text("SELECT sequence FROM results ORDER BY sequence")).all()
        view = batch_views.get(session, batch_id)
    assert list(sequence) == list(range(1, 65))
    assert view is not None
    assert view.status is BatchStatus.COMPLETED
