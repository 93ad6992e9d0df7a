"""When a request was first run, on Postgres's clock, whoever has run it since."""

import time
from dataclasses import replace
from datetime import datetime, timedelta

from sqlalchemy import func, select

from tests.fixtures.batches import LEASE, held, result, submit
from worker.store.batches import batch_views, batches
from worker.store.database.session import Store
from worker.store.requests import partial_outputs, result_views
from worker.store.requests.result_views import ResultView
from worker.store.shards import shards
from worker.store.shards.shards import Claim, Progress
from worker.values.results import NewResult, PartialOutput


def save(store: Store, claimed: Claim, *results: NewResult) -> None:
    with store.transaction() as session:
        shards.save(session, [Progress(claimed, results, running_tokens=0)], lease=LEASE)


def keep(store: Store, request_id: int, started_at: float) -> None:
    with store.transaction() as session:
        partial_outputs.keep(session, {request_id: PartialOutput((5, 6), "so far", None, started_at)})


def page(store: Store, batch_id: str) -> list[ResultView]:
    with store.transaction() as session:
        return result_views.page(session, batch_id, after=0, limit=10)


def now(store: Store) -> datetime:
    with store.transaction() as session:
        return session.scalars(select(func.clock_timestamp())).one()


def test_a_result_says_when_it_was_first_run(store: Store) -> None:
    batch_id = submit(store)
    claimed = held(store, 1)
    before = now(store)
    moment = time.monotonic() - 5
    save(store, claimed, replace(result(1), started_at=moment), result(2))
    after = now(store)
    ran, never_ran = page(store, batch_id)
    assert ran.started_at is not None
    round_trip = after - before  # the two clocks are read within it, not at one moment
    assert before - round_trip <= ran.started_at + timedelta(seconds=5) <= after + round_trip
    assert (never_ran.started_at, never_ran.queue_wait) == (None, None)
    with store.transaction() as session:
        view = batch_views.get(session, batch_id)
    assert view is not None
    assert ran.accepted_at == view.created_at
    assert ran.latency == ran.created_at - view.created_at > timedelta(0)
    assert ran.queue_wait == ran.started_at - view.created_at


def test_what_is_resumed_was_first_run_by_the_first_worker(store: Store) -> None:
    batch_id = submit(store)
    claimed = held(store, 1)
    first, second = time.monotonic() - 90, time.monotonic() - 5
    keep(store, 1, first)
    keep(store, 1, second)  # a later run of the same request
    save(store, claimed, replace(result(1), started_at=second), replace(result(2), started_at=second))
    resumed, other = page(store, batch_id)
    assert resumed.started_at is not None
    assert other.started_at is not None
    assert timedelta(seconds=84) < other.started_at - resumed.started_at < timedelta(seconds=86)


def test_what_is_cut_off_while_nobody_runs_it_was_first_run_too(store: Store) -> None:
    batch_id = submit(store)
    keep(store, 1, time.monotonic() - 90)
    with store.transaction() as session:
        batches.cancel(session, batch_id)
    found = {row.position: row for row in page(store, batch_id)}
    assert found[0].output == "so far"
    assert found[0].started_at is not None
    assert found[0].started_at < found[0].accepted_at
    assert [found[i].started_at for i in (1, 2, 3)] == [None] * 3
