from datetime import timedelta

import pytest
from psycopg import DataError
from sqlalchemy import text

from tests.fixtures.batches import LEASE, claim, held, result, run_to_the_end, submit
from worker.contract.states import BatchStatus
from worker.store.batches import batch_views, batches
from worker.store.batches.batch_views import BatchView
from worker.store.batches.batches import NewBatch
from worker.store.database.session import Store
from worker.store.requests import result_views
from worker.store.requests.requests import NewRequest
from worker.store.shards import control, leases, shards
from worker.store.webhooks import deliveries
from worker.values.outcomes import Outcome
from worker.values.results import PartialOutput
from worker.values.sampling import SamplingParams


def view(store: Store, batch_id: str) -> BatchView:
    with store.transaction() as session:
        found = batch_views.get(session, batch_id)
    assert found is not None
    assert found.num_settled <= found.num_requests
    return found


def events(store: Store) -> int:
    with store.transaction() as session:
        return session.scalar(text("SELECT count(*) FROM webhook_events")) or 0


def settle_stopping(store: Store) -> int:
    with store.transaction() as session:
        return batches.settle_stopping(session, limit=10)


def test_a_batch_lives_from_pending_to_completed(store: Store) -> None:
    batch_id = submit(store, num_requests=5, shard_size=2, callback_url="https://example.com/hook")
    assert view(store, batch_id).status is BatchStatus.PENDING
    first = held(store, 1)
    assert view(store, batch_id).status is BatchStatus.PROCESSING
    run_to_the_end(store, first)
    assert view(store, batch_id).progress == pytest.approx(0.4)
    run_to_the_end(store, held(store, 2))
    assert events(store) == 0
    run_to_the_end(store, held(store, 3))
    done = view(store, batch_id)
    assert (done.status, done.num_completed, done.progress) == (BatchStatus.COMPLETED, 5, 1.0)
    assert (done.input_tokens, done.cached_tokens, done.output_tokens) == (15, 5, 35)
    assert done.finished_at is not None
    assert events(store) == 1


def test_shards_that_finish_together_end_the_batch_once(store: Store) -> None:
    batch_id = submit(store, num_requests=5, shard_size=2, callback_url="https://example.com/hook")
    claims = [held(store, shard_id) for shard_id in (1, 2, 3)]
    rows = [[result(request.id) for request in one.requests] for one in claims]
    progress = [
        shards.Progress(one, results, running_tokens=3, is_last=one is not claims[1])
        for one, results in zip(claims, [rows[0], [], rows[2]], strict=True)
    ]
    with store.transaction() as session:
        assert shards.save(session, progress, lease=LEASE) == [shards.AfterSave.CONTINUE] * 3
    seen = view(store, batch_id)
    assert (seen.status, seen.num_completed, seen.running_tokens) == (BatchStatus.PROCESSING, 3, 3)
    with store.transaction() as session:
        assert [leases.expired(session, limit=9), claim(store, 1), claim(store, 3)] == [[], None, None]
        shards.save(session, [shards.Progress(claims[1], rows[1], 0, is_last=True)], lease=None)
    seen = view(store, batch_id)
    assert (seen.status, seen.num_completed, seen.running_tokens) == (BatchStatus.COMPLETED, 5, 0)
    assert events(store) == 1


def test_results_are_read_in_order_of_completion_without_gaps(store: Store) -> None:
    batch_id = submit(store, num_requests=6, shard_size=2)
    for shard_id in (3, 1, 2):
        run_to_the_end(store, held(store, shard_id))
    with store.transaction() as session:
        first = result_views.page(session, batch_id, after=0, limit=4)
        rest = result_views.page(session, batch_id, after=4, limit=4)
        outputs = result_views.outputs(session, batch_id)
    assert [row.sequence for row in first + rest] == [1, 2, 3, 4, 5, 6]
    assert [row.position for row in first + rest] == [4, 5, 0, 1, 2, 3]
    assert outputs == [f"out prompt {i}" for i in range(6)]


def test_cancelling_a_waiting_batch_ends_it_at_once(store: Store) -> None:
    batch_id = submit(store, callback_url="https://example.com/hook")
    with store.transaction() as session:
        assert batches.cancel(session, batch_id)
    cancelled = view(store, batch_id)
    assert (cancelled.status, cancelled.num_cancelled) == (BatchStatus.CANCELLED, 4)
    assert events(store) == 1
    assert claim(store, 1) is None


def test_cancelling_a_running_batch_keeps_what_is_finished(store: Store) -> None:
    batch_id = submit(store, callback_url="https://example.com/hook")
    running = held(store, 1)
    with store.transaction() as session:
        batches.cancel(session, batch_id)
    assert view(store, batch_id).status is BatchStatus.CANCELLING
    with store.transaction() as session:
        progress = shards.Progress(running, [result(running.requests[0].id)], running_tokens=2)
        saved = shards.save(session, [progress], lease=timedelta(seconds=9))
    assert saved == [shards.AfterSave.STOP]
    with store.transaction() as session:
        shards.release(session, running)
    done = view(store, batch_id)
    assert (done.status, done.num_completed, done.num_cancelled) == (BatchStatus.CANCELLED, 1, 3)
    assert events(store) == 1
    with store.transaction() as session:
        rows = result_views.page(session, batch_id, after=0, limit=10)
    assert [row.sequence for row in rows] == [1, 2, 3, 4]
    assert [row.outcome for row in rows] == [Outcome.COMPLETED] + [Outcome.CANCELLED] * 3
    assert {row.error_code for row in rows[1:]} == {"batch_cancelled"}


@pytest.mark.parametrize("status", [BatchStatus.CANCELLED, BatchStatus.EXPIRED])
def test_a_large_batch_is_stopped_a_piece_at_a_time(
    store: Store, monkeypatch: pytest.MonkeyPatch, status: BatchStatus
) -> None:
    monkeypatch.setattr(batches, "DROP_AT_ONCE", 2)
    batch_id = submit(store, num_requests=10, shard_size=2, callback_url="https://example.com")
    run_to_the_end(store, held(store, 1))
    with store.transaction() as session:
        if status is BatchStatus.CANCELLED:
            batches.cancel(session, batch_id)
        else:
            session.execute(text("UPDATE batches SET expires_at = now() - interval '1 second'"))
            batches.settle_stopping(session, limit=10)
    first = view(store, batch_id)
    assert not first.status.is_terminal
    assert (first.num_completed, first.num_cancelled) == (2, 4)
    assert claim(store, 4) is None
    with store.transaction() as session:
        assert batches.settle_stopping(session, limit=10) == 0
    with store.transaction() as session:
        assert batches.settle_stopping(session, limit=10) == 1
    last = view(store, batch_id)
    assert (last.status, last.num_completed, last.num_cancelled) == (status, 2, 8)
    with store.transaction() as session:
        rows = result_views.page(session, batch_id, after=0, limit=100)
        assert [row.sequence for row in rows] == list(range(1, 11))
    assert events(store) == 1


def test_cancelling_an_ended_batch_changes_nothing(store: Store) -> None:
    batch_id = submit(store, num_requests=1, callback_url="https://example.com/hook")
    run_to_the_end(store, held(store, 1))
    before = view(store, batch_id)
    with store.transaction() as session:
        assert batches.cancel(session, batch_id)
    after = view(store, batch_id)
    assert (after.status, after.finished_at) == (before.status, before.finished_at)
    assert events(store) == 1


def test_a_closed_window_expires_the_batch(store: Store) -> None:
    batch_id = submit(store, completion_window=timedelta(0), callback_url="https://example.com/hook")
    assert claim(store, 1) is None
    assert settle_stopping(store) == 1
    expired = view(store, batch_id)
    assert (expired.status, expired.num_cancelled) == (BatchStatus.EXPIRED, 4)
    assert settle_stopping(store) == 0
    assert events(store) == 1


def test_a_dead_worker_does_not_hold_up_a_cancelled_batch(store: Store) -> None:
    batch_id = submit(store, num_requests=2)
    held(store, 1, lease=timedelta(0))
    with store.transaction() as session:
        batches.cancel(session, batch_id)
    assert settle_stopping(store) == 0
    with store.transaction() as session:
        assert leases.return_expired(session, 1, batch_id, max_attempts=5)
    assert view(store, batch_id).status is BatchStatus.CANCELLED


def test_nothing_is_stored_when_a_submission_fails_half_way(store: Store) -> None:
    new = NewBatch(params=SamplingParams(), requests=[NewRequest(prompt="bad \x00 text", max_tokens=1)])
    with pytest.raises(DataError), store.transaction() as session:
        batches.submit(session, new, shard_size=1)
    with store.transaction() as session:
        for table in ("batches", "shards", "requests"):
            assert session.scalar(text(f"SELECT count(*) FROM {table}")) == 0


def test_a_small_batch_carries_its_outputs_in_the_event(store: Store) -> None:
    submit(store, num_requests=2, callback_url="https://example.com/hook", metadata={"a": "ü"})
    run_to_the_end(store, held(store, 1))
    with store.transaction() as session:
        delivery_id = session.scalar(text("SELECT id FROM deliveries"))
        claimed = deliveries.claim(session, str(delivery_id), lease=timedelta(seconds=9), most_at_once=1)
    assert claimed is not None
    assert '"outputs":["out prompt 0","out prompt 1"]' in claimed.body
    assert '"type":"batch.completed"' in claimed.body
    assert '"metadata":{"a":"ü"}' in claimed.body


def test_what_a_dead_worker_had_saved_is_kept_when_the_batch_is_cancelled(store: Store) -> None:
    batch_id = submit(store, num_requests=3, shard_size=3)
    running = held(store, 1, lease=timedelta(0))
    kept = {running.requests[1].id: PartialOutput((5, 6, 7), "so far", 1)}
    with store.transaction() as session:
        progress = shards.Progress(running, [], 3, partial_outputs=kept)
        assert shards.save(session, [progress], lease=None) == [shards.AfterSave.CONTINUE]
    with store.transaction() as session:
        batches.cancel(session, batch_id)
    with store.transaction() as session:
        leases.return_expired(session, 1, batch_id, max_attempts=2)
    ended = view(store, batch_id)
    assert (ended.status, ended.input_tokens, ended.output_tokens) == (BatchStatus.CANCELLED, 3, 3)
    with store.transaction() as session:
        rows = {row.position: row for row in result_views.page(session, batch_id, after=0, limit=9)}
        assert session.scalar(text("SELECT count(*) FROM partial_outputs")) == 0
    assert [rows[i].output for i in range(3)] == [None, "so far", None]
    assert (rows[1].finish_reason, rows[1].num_output_tokens) == ("cancelled", 3)


def test_a_paused_batch_still_expires(store: Store) -> None:
    batch_id = submit(store, completion_window=timedelta(hours=1))
    with store.transaction() as session:
        control.pause(session, batch_id)
    with store.transaction() as session:
        session.execute(text("UPDATE batches SET expires_at = now()"))
    assert settle_stopping(store) == 1
    assert view(store, batch_id).status is BatchStatus.EXPIRED
