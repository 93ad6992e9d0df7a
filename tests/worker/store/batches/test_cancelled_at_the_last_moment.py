"""A batch is cancelled, or expired, only if some request of it is."""

import random
from collections.abc import Callable
from datetime import timedelta

import pytest
from sqlalchemy import text

from tests.fixtures.batches import LEASE, held, result, run_to_the_end, submit
from worker.contract.states import BatchStatus
from worker.store.batches import batch_views, batches
from worker.store.database.session import Store
from worker.store.shards import control, shards
from worker.store.shards.shards import Claim, Progress
from worker.values.outcomes import Outcome

HOOK = "https://example.com/hook"


def ended(store: Store, batch_id: str) -> tuple[str, dict[str, int]]:
    """Return how a batch has ended, by its row, which its one event and its results must agree with."""
    with store.transaction() as session:
        view = batch_views.get(session, batch_id)
        ((kind, body),) = session.execute(
            text("SELECT type, body::json -> 'data' FROM webhook_events WHERE batch_id = :id"),
            {"id": batch_id},
        ).all()
        outcomes = session.scalars(
            text("SELECT outcome FROM results WHERE batch_id = :id"), {"id": batch_id}
        ).all()
        (ends,) = session.execute(text("SELECT status, sum(count) FROM batch_counts GROUP BY status")).all()
    assert view is not None
    counts = {
        "total": view.num_requests,
        "pending": 0,
        "completed": view.num_completed,
        "failed": view.num_failed,
        "cancelled": view.num_cancelled,
    }
    assert counts["total"] == len(outcomes)
    assert all(counts[one] == outcomes.count(one) for one in Outcome)
    assert (kind, body["status"], body["counts"]) == (f"batch.{view.status}", view.status, counts)
    assert ends == (view.status, 1)
    return view.status, counts


def cancel(store: Store, batch_id: str) -> None:
    with store.transaction() as session:
        assert batches.cancel(session, batch_id)


def expire(store: Store, _: str) -> None:
    with store.transaction() as session:
        session.execute(text("UPDATE batches SET expires_at = now() - interval '1 s'"))


@pytest.mark.parametrize("stop", [cancel, expire])
def test_a_batch_that_was_done_when_it_was_stopped_is_completed(
    store: Store, stop: Callable[[Store, str], None]
) -> None:
    batch_id = submit(
        store, num_requests=3, shard_size=2, callback_url=HOOK, completion_window=timedelta(hours=1)
    )
    claims = [held(store, 1), held(store, 2)]
    stop(store, batch_id)
    for claimed in claims:  # the engine had finished them all, which nobody knew
        run_to_the_end(store, claimed)
    assert ended(store, batch_id) == (
        BatchStatus.COMPLETED,
        {"total": 3, "pending": 0, "completed": 3, "failed": 0, "cancelled": 0},
    )


@pytest.mark.parametrize("seed", range(25))
def test_only_a_batch_with_a_cancelled_request_is_cancelled(store: Store, seed: int) -> None:
    chance = random.Random(seed)
    num_requests = chance.randint(1, 6)
    batch_id = submit(store, num_requests=num_requests, shard_size=chance.randint(1, 3), callback_url=HOOK)
    with store.transaction() as session:
        shard_ids = list(session.scalars(text("SELECT id FROM shards ORDER BY id")))
    # Mostly all of it runs, and mostly to its end, when the cancel comes.
    running = [held(store, shard_id) for shard_id in shard_ids if chance.random() < 0.9]
    while running and chance.random() < 0.4:
        run_to_the_end(store, running.pop())
    if chance.random() < 0.2:
        with store.transaction() as session:
            control.cancel_request(session, batch_id, chance.randrange(num_requests))
    cancel(store, batch_id)
    for claimed in running:
        _end(store, claimed, chance)
    with store.transaction() as session:
        batches.settle_stopping(session, limit=10)
    status, counts = ended(store, batch_id)
    # One whose other requests had ended when one of them was cancelled had ended, too, before it was stopped.
    may_be = (
        {BatchStatus.CANCELLED, BatchStatus.COMPLETED} if counts["cancelled"] else {BatchStatus.COMPLETED}
    )
    assert status in may_be


def _end(store: Store, claimed: Claim, chance: random.Random) -> None:
    """Save what a worker would that hears of the cancel late, in time, or not at all."""
    outcomes = [
        chance.choices([Outcome.COMPLETED, Outcome.FAILED, Outcome.CANCELLED], [8, 1, 1])[0]
        for _ in claimed.requests
    ]
    results = [
        result(request.id, outcome=outcome)
        for request, outcome in zip(claimed.requests, outcomes, strict=True)
    ]
    if chance.random() < 0.1:
        with store.transaction() as session:
            shards.release(session, claimed)
        return
    with store.transaction() as session:
        shards.save(session, [Progress(claimed, results, running_tokens=0, is_last=True)], lease=LEASE)
