"""Requests that kill their workers, seen from Postgres: a lease that runs out is all there is to go by."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from sqlalchemy import text

from tests.fixtures.batches import LEASE, claim, result, submit
from worker.contract.states import AttemptCause, BatchStatus
from worker.store.batches import batch_views
from worker.store.database.session import Store
from worker.store.requests import attempts, result_views
from worker.store.requests.result_views import ResultView
from worker.store.shards import leases, shards
from worker.store.shards.shards import Claim, Progress
from worker.values.outcomes import Outcome

EXPIRED = timedelta(seconds=-1)
SLOTS = 4


def run_worker(store: Store, kills: Callable[[int], bool]) -> bool:
    """Run ready shards as one worker does, several at once and a suspect alone; False: nothing is ready.

    A request that kills takes everything the worker holds with it, but not what was saved before.
    """
    with store.transaction() as session:
        ready = session.execute(
            text("SELECT id, is_suspect FROM shards WHERE state = 'ready' ORDER BY id")
        ).all()
    if not ready:
        return False
    together = [shard_id for shard_id, is_suspect in ready if not is_suspect][:SLOTS]
    chosen = together or [ready[0][0]]
    claims = [claimed for shard_id in chosen if (claimed := claim(store, shard_id, lease=EXPIRED))]
    positions = {one: position_of(store, one) for one in (r.id for c in claims for r in c.requests)}
    is_killed = any(kills(position) for position in positions.values())
    for claimed in claims:
        if is_killed:
            first = claimed.requests[:1] if len(claimed.requests) > 2 else []
            done = [
                result(one.id) for one in first if not kills(positions[one.id]) and len(claimed.requests) > 2
            ]
            save(store, Progress(claimed, done, 0))
        else:
            save(store, Progress(claimed, [result(one.id) for one in claimed.requests], 0, is_last=True))
    with store.transaction() as session:
        lapsed = leases.expired(session, limit=100)
    for shard_id, batch_id in lapsed:
        with store.transaction() as session:
            leases.return_expired(session, shard_id, batch_id, max_attempts=2)
    return True


def save(store: Store, progress: Progress) -> None:
    with store.transaction() as session:
        shards.save(session, [progress], lease=None if not progress.is_last else LEASE)


def position_of(store: Store, request_id: int) -> int:
    with store.transaction() as session:
        return int(
            session.scalar(text(f"SELECT position FROM requests WHERE id = {request_id}"))  # type: ignore[arg-type]
        )


def results(store: Store, batch_id: str) -> list[ResultView]:
    with store.transaction() as session:
        found = result_views.page(session, batch_id, after=0, limit=1000)
    return sorted(found, key=lambda one: one.position)


@pytest.mark.parametrize("bad", [{13}, {5, 6, 20}])
def test_only_the_requests_that_kill_fail(store: Store, bad: set[int]) -> None:
    batch_id = submit(store, num_requests=24, shard_size=8)
    runs = 0
    while run_worker(store, bad.__contains__):
        runs += 1
        assert runs < 100
    found = results(store, batch_id)
    assert {one.position for one in found if one.outcome is Outcome.FAILED} == bad
    assert {one.error_code for one in found if one.position in bad} == {"worker_lost"}
    assert len(found) == 24
    with store.transaction() as session:
        view = batch_views.get(session, batch_id)
    assert view is not None
    assert (view.status, view.num_failed, view.num_completed) == (
        BatchStatus.COMPLETED,
        len(bad),
        24 - len(bad),
    )
    # Two workers together, then one for each bisection, then two for the request alone.
    assert runs <= (2 + 3 + 2) * len(bad) + 6 * 4


def test_workers_that_die_of_something_else_cost_no_request(store: Store) -> None:
    batch_id = submit(store, num_requests=32, shard_size=8)
    deaths = iter([True] * 7)
    while run_worker(store, lambda _: next(deaths, False)):
        pass
    assert {one.outcome for one in results(store, batch_id)} == {Outcome.COMPLETED}


def test_the_tries_are_kept_with_their_cause(store: Store) -> None:
    batch_id = submit(store, num_requests=4, shard_size=2)
    while run_worker(store, {0}.__contains__):
        pass
    bad, innocent = results(store, batch_id)[0], results(store, batch_id)[3]
    with store.transaction() as session:
        found = attempts.of_requests(session, [bad.request_id, innocent.request_id])
    assert [one.number for one in found[bad.request_id]] == [1, 2, 3, 4, 5]
    assert {one.cause for one in found[bad.request_id]} == {AttemptCause.WORKER_LOST}
    assert {one.worker for one in found[bad.request_id]} == {"gpu@here"}
    assert len(found[innocent.request_id]) == 2


def test_a_bisected_shard_keeps_its_place_in_line(store: Store) -> None:
    submit(store, num_requests=2, shard_size=2, priority=7, completion_window=timedelta(hours=1))
    for _ in range(3):
        run_worker(store, {0}.__contains__)
    with store.transaction() as session:
        rows = session.execute(
            text("SELECT priority, expires_at, num_requests, is_suspect FROM shards ORDER BY id")
        ).all()
    assert len(rows) == 2
    assert rows[0] == rows[1]
    assert rows[0][1] is not None


def test_a_stale_holder_of_a_bisected_shard_may_still_save_but_not_twice(store: Store) -> None:
    batch_id = submit(store, num_requests=2, shard_size=2)
    for _ in range(2):
        run_worker(store, {0}.__contains__)
    stale = claim(store, 1, lease=EXPIRED)
    assert stale is not None
    with store.transaction() as session:
        leases.return_expired(session, 1, batch_id, max_attempts=2)
    other = claim(store, 2)
    assert other is not None
    assert [one.id for one in other.requests] == [2]
    finish(store, stale)
    finish(store, other)
    assert [one.sequence for one in results(store, batch_id)] == [1, 2]


def finish(store: Store, held: Claim) -> None:
    save(store, Progress(held, [result(one.id) for one in held.requests], 0, is_last=True))


def test_half_of_a_shard_ends_with_a_worker_that_was_taken_for_dead(store: Store) -> None:
    """Its lease ran out, its shard was halved, and then it saved all of it: nothing is left for the half."""
    batch_id = submit(store, num_requests=4, shard_size=4)
    claimed = None
    for _ in range(3):
        claimed = claim(store, 1, lease=EXPIRED)
        with store.transaction() as session:
            leases.return_expired(session, 1, batch_id, max_attempts=2)
    assert claimed is not None
    assert states(store) == ["ready", "ready"], "it was halved"
    save(store, Progress(claimed, [result(one.id) for one in claimed.requests], 0, is_last=True))
    with store.transaction() as session:
        view = batch_views.get(session, batch_id)
    assert view is not None
    assert view.status is BatchStatus.COMPLETED
    assert states(store) == ["finished", "finished"]


def states(store: Store) -> list[str]:
    with store.transaction() as session:
        return list(session.scalars(text("SELECT state FROM shards ORDER BY id")))
