"""Workers of one batch at the same time: none waits for the batch's lock, and nothing is counted twice."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from tests.fixtures.batches import LEASE, claim, held, result, submit
from tests.fixtures.deployment import eventually
from worker.contract.states import BatchStatus
from worker.store.batches import batch_views, batches
from worker.store.batches.batch_views import BatchView
from worker.store.database.session import Store
from worker.store.requests import result_views, tally
from worker.store.shards import control, counting, leases, shards
from worker.store.shards.shards import AfterSave, Claim, Progress
from worker.values.outcomes import Outcome

EXPIRED = timedelta(seconds=-1)


@contextmanager
def impatient(store: Store) -> Iterator[Session]:
    """Open a transaction that fails where it would wait for a lock."""
    with store.transaction() as session:
        session.execute(text("SET LOCAL lock_timeout = '100ms'"))
        yield session


def save(session: Session, claimed: Claim, *, is_last: bool = True) -> AfterSave:
    done = [result(one.id) for one in claimed.requests]
    (verdict,) = shards.save(session, [Progress(claimed, done, 0, is_last=is_last)], lease=LEASE)
    return verdict


def view(store: Store, batch_id: str) -> BatchView:
    with store.transaction() as session:
        found = batch_views.get(session, batch_id)
    assert found is not None
    return found


def sequences(store: Store, batch_id: str) -> list[int]:
    with store.transaction() as session:
        return [one.sequence for one in result_views.page(session, batch_id, after=0, limit=1000)]


def num_events(store: Store) -> int:
    with store.transaction() as session:
        return int(session.scalar(text("SELECT count(*) FROM webhook_events")) or 0)


def num_waiting_for_locks(store: Store) -> int:
    with store.transaction() as session:
        return int(session.scalar(text("SELECT count(*) FROM pg_locks WHERE NOT granted")) or 0)


def test_a_claim_and_a_save_do_not_wait_for_the_batch(store: Store) -> None:
    batch_id = submit(store, callback_url="https://a.example/")
    first, second = held(store, 1), None
    with store.transaction() as other:
        batches.lock(other, batch_id)
        with impatient(store) as session:
            second = shards.claim(session, 2, worker="gpu@there", lease=LEASE)
        assert second is not None
        for claimed in (first, second):
            with impatient(store) as session:
                assert save(session, claimed) is AfterSave.CONTINUE
            counting.follow(store, batch_id)
        seen = view(store, batch_id)
        assert (seen.status, seen.num_settled, sequences(store, batch_id)) == (BatchStatus.PROCESSING, 0, [])
        with store.transaction() as session:
            assert not result_views.has_news(session, batch_id, after=0)
            assert not result_views.has_news(session, batch_id, after=0, in_input_order=True)
            assert result_views.page_of_input(session, batch_id, after=0, limit=9) == []
    counting.follow(store, batch_id)
    done = view(store, batch_id)
    assert (done.status, done.num_completed, done.output_tokens) == (BatchStatus.COMPLETED, 4, 28)
    assert sequences(store, batch_id) == [1, 2, 3, 4]
    assert num_events(store) == 1


def test_progress_does_not_fall_while_results_wait_for_their_count(store: Store) -> None:
    batch_id = submit(store)
    claimed, other_claimed = held(store, 1), held(store, 2)
    with store.transaction() as session:
        shards.save(session, [Progress(claimed, [], 5), Progress(other_claimed, [], 3)], lease=LEASE)
    seen = [view(store, batch_id).progress]
    with store.transaction() as other:
        batches.lock(other, batch_id)
        with store.transaction() as session:
            first = [result(claimed.requests[0].id)]
            shards.save(session, [Progress(claimed, first, 2)], lease=LEASE)
        seen.append(view(store, batch_id).progress)
        with store.transaction() as session:
            save(session, other_claimed)
        seen.append(view(store, batch_id).progress)
        assert view(store, batch_id).num_settled == 0
    counting.follow(store, batch_id)
    seen.append(view(store, batch_id).progress)
    # Each of four requests may have ten tokens: 5 and 3 run, one ends, then two of the other shard.
    assert seen == [8 / 40, (10 + 2 + 3) / 40, (30 + 2) / 40, (30 + 2) / 40]


def test_the_first_claim_of_a_batch_does_not_wait_either(store: Store) -> None:
    batch_id = submit(store)
    with store.transaction() as other:
        batches.lock(other, batch_id)
        with impatient(store) as session:
            claimed = shards.claim(session, 1, worker="gpu@here", lease=LEASE)
        assert claimed is not None
    assert view(store, batch_id).started_at is None
    with store.transaction() as session:
        save(session, claimed)
        claimed_at = session.scalar(text("SELECT claimed_at FROM shards WHERE id = 1"))
    started = view(store, batch_id)
    assert (started.status, started.started_at) == (BatchStatus.PROCESSING, claimed_at)


def test_workers_of_a_batch_with_a_limit_of_tokens_take_turns(store: Store) -> None:
    batch_id = submit(store, max_total_tokens=1000)
    with store.transaction() as other:
        batches.lock(other, batch_id)
        with pytest.raises(OperationalError, match="lock timeout"), impatient(store) as session:
            shards.claim(session, 1, worker="gpu@here", lease=LEASE)


def test_the_next_save_counts_what_others_have_left_before_its_own(store: Store) -> None:
    batch_id = submit(store)
    first, second = held(store, 1), held(store, 2)
    with store.transaction() as other:
        batches.lock(other, batch_id)
        with impatient(store) as session:
            save(session, first, is_last=False)
    with store.transaction() as session:
        save(session, second, is_last=False)
    with store.transaction() as session:
        found = result_views.page(session, batch_id, after=0, limit=9)
    assert [(one.sequence, one.position) for one in found] == [(1, 0), (2, 1), (3, 2), (4, 3)]


def test_a_batch_that_is_stopped_counts_all_before_it_ends(store: Store) -> None:
    batch_id = submit(store, num_requests=6, callback_url="https://a.example/")
    first = held(store, 1)
    with store.transaction() as other:
        batches.lock(other, batch_id)
        with impatient(store) as session:
            save(session, first)
    with store.transaction() as session:
        assert batches.cancel(session, batch_id)
    ended = view(store, batch_id)
    assert (ended.status, ended.num_completed, ended.num_cancelled) == (BatchStatus.CANCELLED, 2, 4)
    assert sequences(store, batch_id) == [1, 2, 3, 4, 5, 6]
    assert num_events(store) == 1


def test_a_stop_rule_applies_once_the_failures_are_counted(store: Store) -> None:
    batch_id = submit(store, max_failed=1)
    first, second = held(store, 1), held(store, 2)
    with store.transaction() as other:
        batches.lock(other, batch_id)
        failed = [result(one.id, outcome=Outcome.FAILED) for one in first.requests]
        with impatient(store) as session:
            shards.save(session, [Progress(first, failed, 0, is_last=True)], lease=LEASE)
    counting.follow(store, batch_id)
    with store.transaction() as session:
        assert save(session, second) is AfterSave.STOP
    ended = view(store, batch_id)
    assert (ended.error_code, ended.num_failed, ended.num_completed) == ("max_failed_exceeded", 2, 2)


def test_a_shard_that_is_being_claimed_is_not_dropped_by_a_cancel(store: Store) -> None:
    batch_id = submit(store, num_requests=2)
    cancelling = threading.Thread(target=lambda: _cancel(store, batch_id))
    with store.transaction() as session:
        claimed = shards.claim(session, 1, worker="gpu@here", lease=LEASE)
        # The start of the batch has its lock: give it back, as for a later claim.
    assert claimed is not None
    with store.transaction() as session:
        shards.release(session, claimed)
    with store.transaction() as session:
        claimed = shards.claim(session, 1, worker="gpu@here", lease=LEASE)
        assert claimed is not None
        cancelling.start()
        eventually(lambda: num_waiting_for_locks(store), what="a cancel that waits for the claim")
    cancelling.join()
    assert view(store, batch_id).status is BatchStatus.CANCELLING
    with store.transaction() as session:
        assert save(session, claimed) is AfterSave.STOP
    assert (view(store, batch_id).status, view(store, batch_id).num_completed) == (BatchStatus.COMPLETED, 2)


def _cancel(store: Store, batch_id: str) -> None:
    with store.transaction() as session:
        batches.cancel(session, batch_id)


def test_the_holders_of_both_halves_of_a_shard_save_at_once(store: Store) -> None:
    """One that was taken for dead holds what was bisected since: each request still gets one result."""
    batch_id = submit(store, num_requests=2)
    late = held(store, 1, lease=EXPIRED)
    with store.transaction() as session:
        session.execute(text("UPDATE shards SET is_suspect = true WHERE id = 1"))
    with store.transaction() as session:
        assert leases.return_expired(session, 1, batch_id, max_attempts=1)
    other = held(store, 2)
    assert len(other.requests) == 1
    verdicts: list[AfterSave] = []

    def save_half() -> None:
        with store.transaction() as session:
            verdicts.append(save(session, other))

    half = threading.Thread(target=save_half)
    with store.transaction() as session:
        assert save(session, late, is_last=False) is AfterSave.STOP  # as it has completed the batch
        half.start()
        eventually(lambda: num_waiting_for_locks(store), what="a save that waits for the other")
    half.join()
    counting.follow(store, batch_id)
    assert verdicts == [AfterSave.LOST]
    assert (view(store, batch_id).status, sequences(store, batch_id)) == (BatchStatus.COMPLETED, [1, 2])


def test_many_workers_and_a_reader_at_once(store: Store) -> None:
    """The cursor of the reader skips nothing, the numbers have no gaps, and the batch ends once."""
    num_shards, num_workers = 48, 8
    batch_id = submit(store, num_requests=2 * num_shards, callback_url="https://a.example/")
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for shard_id in range(number + 1, num_shards + 1, num_workers):
                claimed = claim(store, shard_id, worker=f"gpu@{number}")
                assert claimed is not None
                first, last = claimed.requests
                for one in (first, last):
                    progress = Progress(claimed, [result(one.id)], 0, is_last=one is last)
                    with store.transaction() as session:
                        shards.save(session, [progress], lease=LEASE)
                    counting.follow(store, batch_id)
        except BaseException as error:  # noqa: BLE001 - the test's thread shows it
            errors.append(error)

    workers = [threading.Thread(target=work, args=(number,)) for number in range(num_workers)]
    for one in workers:
        one.start()
    read: list[int] = []
    while any(one.is_alive() for one in workers):
        with store.transaction() as session:
            page = result_views.page(session, batch_id, after=read[-1] if read else 0, limit=7)
            counted = batch_views.get(session, batch_id)
        read += [one.sequence for one in page]
        assert counted is not None
        assert len(read) <= counted.num_settled
    for one in workers:
        one.join()
    assert errors == []
    ended = view(store, batch_id)
    assert (ended.status, ended.num_completed) == (BatchStatus.COMPLETED, 2 * num_shards)
    with store.transaction() as session:
        read += [one.sequence for one in result_views.page(session, batch_id, after=read[-1], limit=1000)]
    assert read == list(range(1, 2 * num_shards + 1))
    assert num_events(store) == 1


def test_the_sweep_counts_what_a_dead_worker_has_left(store: Store) -> None:
    batch_id = submit(store, num_requests=2)
    claimed = held(store, 1)
    with store.transaction() as other:
        batches.lock(other, batch_id)
        with impatient(store) as session:
            save(session, claimed)
    with store.transaction() as session:
        assert tally.batches_behind(session, limit=9) == [batch_id]
    with store.transaction() as session:
        assert counting.count(session, batch_id)
    assert view(store, batch_id).status is BatchStatus.COMPLETED
    with store.transaction() as session:
        assert tally.batches_behind(session, limit=9) == []


def test_a_large_backlog_is_counted_in_parts(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tally, "COUNTED_AT_ONCE", 2)  # a count looks twice
    batch_id = submit(store, num_requests=8, shard_size=4)
    claims = [held(store, 1), held(store, 2)]
    with store.transaction() as other:
        batches.lock(other, batch_id)
        for claimed in claims:
            with impatient(store) as session:
                save(session, claimed)
    with store.transaction() as session:
        assert control.pause(session, batch_id) is control.Done.YES
    with store.transaction() as session:
        assert counting.count(session, batch_id)
    assert view(store, batch_id).status is BatchStatus.PROCESSING
    assert sequences(store, batch_id) == [1, 2, 3, 4]
    counting.follow(store, batch_id)
    assert (view(store, batch_id).status, len(sequences(store, batch_id))) == (BatchStatus.COMPLETED, 8)
