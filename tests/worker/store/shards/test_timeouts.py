"""A request that is out of time fails alone, whoever had it, and its batch completes."""

import time

import pytest
from sqlalchemy import text

from tests.fixtures.batches import held, run_to_the_end
from worker.contract.states import BatchStatus
from worker.dispatcher.dispatcher import Dispatcher
from worker.queue.broker import Broker
from worker.settings import settings
from worker.store.batches import batch_views, batches, retries
from worker.store.batches.batch_views import BatchView
from worker.store.batches.batches import NewBatch
from worker.store.database.session import Store
from worker.store.requests import partial_outputs, result_views
from worker.store.requests.requests import NewRequest
from worker.store.requests.result_views import ResultView
from worker.values.outcomes import Outcome
from worker.values.results import PartialOutput
from worker.values.sampling import SamplingParams


@pytest.fixture
def dispatcher(store: Store) -> Dispatcher:
    return Dispatcher(store, Broker(settings().redis_url), max_attempts=2, publish=lambda _: None)


def submit(store: Store, *timeouts: float | None, temperature: float = 1.0, prompt: str = "prompt {}") -> str:
    requests = [
        NewRequest(prompt=prompt.format(i), max_tokens=10, num_prompt_tokens=3, timeout_seconds=seconds)
        for i, seconds in enumerate(timeouts)
    ]
    with store.transaction() as session:
        new = NewBatch(SamplingParams(max_tokens=10, temperature=temperature), requests)
        return batches.submit(session, new, shard_size=2)


def let_pass(store: Store, seconds: int) -> None:
    """Make everything as it is `seconds` later."""
    past = f"interval '{seconds} seconds'"
    with store.transaction() as session:
        session.execute(text(f"UPDATE batches SET created_at = created_at - {past}"))
        session.execute(text(f"UPDATE shards SET timeout_at = timeout_at - {past}"))


def view(store: Store, batch_id: str) -> BatchView:
    with store.transaction() as session:
        found = batch_views.get(session, batch_id)
    assert found is not None
    return found


def results(store: Store, batch_id: str) -> dict[int, ResultView]:
    with store.transaction() as session:
        found = result_views.page(session, batch_id, after=0, limit=10)
    return {one.position: one for one in found}


def test_what_nobody_runs_fails_when_its_time_is_up(store: Store, dispatcher: Dispatcher) -> None:
    batch_id = submit(store, 60, None, 60, 60)
    with store.transaction() as session:
        partial_outputs.keep(session, {1: PartialOutput((5, 6), "so far")})
    dispatcher.sweep()
    assert not results(store, batch_id)
    let_pass(store, 61)
    dispatcher.sweep()
    found = results(store, batch_id)
    assert sorted(found) == [0, 2, 3]
    assert {(one.outcome, one.error_code) for one in found.values()} == {(Outcome.FAILED, "timeout")}
    assert [found[i].output for i in (0, 2, 3)] == ["so far", None, None]
    assert (view(store, batch_id).num_failed, view(store, batch_id).status) == (3, BatchStatus.PENDING)
    claimed = held(store, 1)
    assert [one.position for one in claimed.requests] == [1]
    run_to_the_end(store, claimed)
    assert view(store, batch_id).status is BatchStatus.COMPLETED


def test_each_request_of_a_shard_has_its_own_time(store: Store, dispatcher: Dispatcher) -> None:
    batch_id = submit(store, 120, 60)
    for passed, failed in ((61, [1]), (30, [1]), (30, [0, 1])):
        let_pass(store, passed)
        dispatcher.sweep()
        assert sorted(results(store, batch_id)) == failed
    assert view(store, batch_id).status is BatchStatus.COMPLETED
    assert view(store, batch_id).num_failed == 2


def test_a_worker_is_told_how_much_time_is_left(store: Store) -> None:
    submit(store, 60, None)
    let_pass(store, 20)
    before = time.monotonic()
    timed, untimed = held(store, 1).requests
    assert untimed.timeout_at is None
    assert timed.timeout_at is not None
    assert before + 30 < timed.timeout_at <= time.monotonic() + 40


def test_requests_with_other_timeouts_are_not_identical(store: Store, dispatcher: Dispatcher) -> None:
    batch_id = submit(store, 60, 60, 120, None, temperature=0, prompt="the same")
    let_pass(store, 61)
    dispatcher.sweep()
    assert sorted(results(store, batch_id)) == [0, 1]


def test_a_retry_has_the_same_time_again(store: Store, dispatcher: Dispatcher) -> None:
    batch_id = submit(store, 60, 60)
    let_pass(store, 61)
    dispatcher.sweep()
    with store.transaction() as session:
        again = retries.retry(session, batch_id, with_cancelled=False, shard_size=2)
    assert again is not None
    dispatcher.sweep()
    assert not results(store, again)
    let_pass(store, 61)
    dispatcher.sweep()
    assert {one.error_code for one in results(store, again).values()} == {"timeout"}
    assert view(store, again).status is BatchStatus.COMPLETED
