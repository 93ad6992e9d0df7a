"""What the dispatcher decides from real rows."""

import re
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import text

from tests.fixtures.batches import held, run_to_the_end, submit
from worker.contract.messages import GPU_QUEUE
from worker.contract.models import Model
from worker.contract.processes import CAPACITY, SPOT
from worker.contract.states import Lane
from worker.dispatcher.autoscaler import HOLD_SECONDS, Autoscaler, withdraw
from worker.dispatcher.deletion_costs import DeletionCosts
from worker.settings import settings
from worker.store.database.session import Store
from worker.store.watching import scaling, workers
from worker.store.watching.scaling import WantedWorkers
from worker.values.step_costs import STEP_COSTS

MODEL = Model("tiny", "ab12" * 8, "t")
HOUR = timedelta(hours=1)
# 64 rows in 0.1 s: an output of 640 tokens takes 1 s of a worker.
ENGINE = {
    STEP_COSTS: {"step": 0.1, "row": 0.0, "token": 0.0, "context": 0.0, "max_rows": 64},
    "max_num_sequences": 64,
    "max_tokens_per_step": 512,
}


@pytest.fixture
def autoscaler(store: Store) -> Autoscaler:
    config = settings().model_copy(update={"cold_start_seconds": 300.0, "target_seconds": 3600.0})
    return Autoscaler(store, config, most=8)


def worker(store: Store, name: str = "gpu@a", *, slots: int = 4, **info: object) -> None:
    with store.transaction() as session:
        said = ENGINE | {"name": MODEL.name, "model_fingerprint": MODEL.fingerprint} | info
        workers.seen(session, name=name, queue=GPU_QUEUE, slots=slots, info=said, model=MODEL.fingerprint)


def leave(store: Store, autoscaler: Autoscaler) -> None:
    """Have the worker end, and let the autoscaler see it: then none is on its way."""
    with store.transaction() as session:
        workers.gone(session, "gpu@a")
    assert only(autoscaler).wanted == 0


def batch(store: Store, *, seconds: float = 64, **given: object) -> str:
    """Submit a batch that takes a worker so many seconds: its outputs always reach their limit."""
    return submit(store, num_requests=64, shard_size=64, max_tokens=round(10 * seconds), model=MODEL, **given)


def only(autoscaler: Autoscaler) -> WantedWorkers:
    (decision,) = autoscaler.decide()
    return decision


def test_without_work_and_workers_nothing_is_published(autoscaler: Autoscaler) -> None:
    assert autoscaler.decide() == []


def test_where_workers_are_no_longer_scaled_old_decisions_go(store: Store, autoscaler: Autoscaler) -> None:
    worker(store)
    autoscaler.decide()
    withdraw(store)
    with store.look() as session:
        assert scaling.published(session) == []


def test_a_model_that_nobody_has_measured_gets_one_worker(store: Store, autoscaler: Autoscaler) -> None:
    batch(store)
    found = only(autoscaler)
    assert (found.model_name, found.wanted, found.num_ready) == ("tiny", 1, 0)
    assert found.num_requests == 64
    assert found.short_since == found.decided_at


def test_a_worker_starts_when_the_slack_is_used_up(store: Store, autoscaler: Autoscaler) -> None:
    worker(store)
    assert only(autoscaler).wanted == 1, "it has just come"
    leave(store, autoscaler)
    batch_id = batch(store, seconds=64, deadline=None, completion_window=4 * HOUR)
    assert only(autoscaler).wanted == 0
    with store.transaction() as session:
        query = "UPDATE batches SET expires_at = now() + interval '350 seconds' WHERE id = :id"
        session.execute(text(query), {"id": batch_id})
    found = only(autoscaler)
    assert found.wanted >= 1
    assert found.work_seconds > 30
    assert found.due_at is not None


def test_many_seconds_of_work_with_little_time_take_many_workers(
    store: Store, autoscaler: Autoscaler
) -> None:
    worker(store)
    only(autoscaler)
    for _ in range(20):
        batch(store, seconds=200, completion_window=timedelta(minutes=10))
    assert only(autoscaler).wanted == 8, "as many as there may be"


def test_a_busy_worker_stays_and_an_idle_one_goes_after_a_while(store: Store, autoscaler: Autoscaler) -> None:
    worker(store)
    batch(store, seconds=1)
    claimed = held(store, 1, worker="gpu@a")
    autoscaler._idle_since["gpu@a"] = float("-inf")
    assert only(autoscaler).wanted == 1
    run_to_the_end(store, claimed)
    assert only(autoscaler).wanted == 1
    autoscaler._idle_since["gpu@a"] -= HOLD_SECONDS
    assert only(autoscaler).wanted == 0


def test_kubernetes_is_told_who_may_go_before_fewer_are_wanted(
    store: Store, autoscaler: Autoscaler, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[dict[str, bool], list[int]]] = []

    def write(_: DeletionCosts, costs: dict[str, bool]) -> None:
        with store.look() as session:
            told.append((costs, [one.wanted for one in scaling.published(session)]))

    monkeypatch.setattr(DeletionCosts, "write", write)
    worker(store)
    worker(store, "gpu@b")
    batch(store, seconds=1)
    held(store, 1, worker="gpu@a")
    assert only(autoscaler).wanted == 2
    autoscaler._idle_since = dict.fromkeys(autoscaler._idle_since, float("-inf"))
    assert only(autoscaler).wanted == 1
    assert told == [({"gpu@a": True, "gpu@b": True}, []), ({"gpu@a": True, "gpu@b": False}, [2])]


def test_interactive_work_wants_a_worker_at_once(store: Store, autoscaler: Autoscaler) -> None:
    worker(store)
    only(autoscaler)
    leave(store, autoscaler)
    submit(store, num_requests=1, shard_size=1, model=MODEL, lane=Lane.INTERACTIVE)
    assert only(autoscaler).wanted == 1


def test_a_cold_start_is_measured_until_enough_workers_are_ready(
    store: Store, autoscaler: Autoscaler
) -> None:
    batch(store)
    only(autoscaler)
    worker(store, slots=0)
    assert only(autoscaler).cold_start_seconds is None, "it loads"
    with store.transaction() as session:
        session.execute(text("UPDATE wanted_workers SET short_since = short_since - interval '90 seconds'"))
    worker(store)
    found = only(autoscaler)
    assert found.cold_start_seconds == pytest.approx(90, abs=30)
    assert found.short_since is None


@pytest.mark.parametrize(("seconds", "on_demand", "spot"), [(725, 0, 1), (330, 1, 0)])
def test_slack_is_left_to_spot(
    store: Store, autoscaler: Autoscaler, seconds: int, on_demand: int, spot: int
) -> None:
    """A spot worker has to be done one cold start and one decision before the deadline."""
    autoscaler.config = autoscaler.config.model_copy(update={"max_spot_workers": 4})
    worker(store, **{CAPACITY: SPOT})
    assert only(autoscaler).spot == 1
    leave(store, autoscaler)
    batch(store, seconds=5, completion_window=timedelta(seconds=seconds))
    found = only(autoscaler)
    assert (found.on_demand, found.spot, found.wanted) == (on_demand, spot, 1)


def test_the_documented_query_reads_the_wanted_number(store: Store, autoscaler: Autoscaler) -> None:
    batch(store)
    only(autoscaler)
    page = (Path(__file__).parents[3] / "docs" / "autoscaling.md").read_text()
    query = re.search(r"^SELECT .* FROM wanted_workers$", page, re.MULTILINE)
    one_model = re.search(r"`(WHERE model_name = 'llama')`", page)
    assert query is not None
    assert one_model is not None
    with store.transaction() as session:
        assert session.scalar(text(query[0])) == 1
        for name, wanted in (("tiny", 1), ("other", 0)):
            of_it = f"{query[0]} {one_model[1]}".replace("llama", name)
            assert session.scalar(text(of_it)) == wanted
