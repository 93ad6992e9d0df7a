"""Which worker leaves the last shards of a backlog to others."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from datetime import timedelta
from typing import cast

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from psycopg.rows import TupleRow
from sqlalchemy import text

from tests.fixtures.batches import held, run_to_the_end, submit
from tests.fixtures.deployment import eventually
from tests.fixtures.fake_engine import FakeEngine, keeper
from worker.contract.messages import GPU_QUEUE
from worker.engine.engine_thread import EngineThread
from worker.preflight import without_driver
from worker.runs.response_cache import Lookup
from worker.runs.run import Ending, Run
from worker.runs.run_meters import RunMeters
from worker.runs.shard_runner import ShardRunner
from worker.runs.shard_saver import ShardSaver
from worker.runs.tail import MAX_SHARDS, Pace, Tail, leaves
from worker.settings import settings
from worker.store.database import presence
from worker.store.database.session import Store
from worker.store.shards import control, shards
from worker.store.watching import workers
from worker.values.step_costs import STEP_COSTS, StepCosts

FAST = StepCosts(step=0.02, row=0.0, token=0.0, context=0.0, max_rows=64)
SLOW = replace(FAST, step=0.4)
IDLE_FAST, IDLE_SLOW = Pace(FAST, 64, 0), Pace(SLOW, 64, 0)


def leaves_it(own: Pace, *others: Pace, num_ready: int = 64, output_tokens: float = 100.0) -> bool:
    return leaves(own, others, num_of_shard=64, num_ready=num_ready, output_tokens=output_tokens)


def test_a_slow_worker_leaves_what_a_fast_one_ends_sooner() -> None:
    assert leaves_it(IDLE_SLOW, IDLE_FAST)
    assert not leaves_it(IDLE_FAST, IDLE_SLOW)
    assert not leaves_it(IDLE_SLOW, IDLE_FAST, num_ready=64 * 20), (
        "so much keeps the fast one busy for longer"
    )
    assert not leaves_it(IDLE_SLOW, replace(IDLE_FAST, num_requests=64 * 20))
    assert not leaves_it(IDLE_SLOW, IDLE_FAST, output_tokens=5.0), "it is not worth waiting for"
    assert not leaves_it(IDLE_SLOW)


def test_a_worker_that_holds_much_leaves_the_last_shard_to_an_idle_one() -> None:
    assert leaves_it(replace(IDLE_SLOW, num_requests=600), IDLE_SLOW)
    assert not leaves_it(IDLE_SLOW, IDLE_SLOW)


@given(
    st.lists(st.tuples(st.floats(0.001, 2.0), st.integers(0, 2000)), min_size=1, max_size=5),
    st.integers(64, 4000),
    st.floats(1, 4000),
)
def test_somebody_always_takes_the_shard(
    loads: list[tuple[float, int]], num_ready: int, output_tokens: float
) -> None:
    known = [Pace(replace(FAST, step=step), 64, num_requests) for step, num_requests in loads]
    others = [known[:place] + known[place + 1 :] for place in range(len(known))]
    assert not all(
        leaves_it(own, *them, num_ready=num_ready, output_tokens=output_tokens)
        for own, them in zip(known, others, strict=True)
    )


Seen = Callable[..., None]


@pytest.fixture
def connections() -> Iterator[dict[str, psycopg.Connection[TupleRow]]]:
    """By which workers are present."""
    opened: dict[str, psycopg.Connection[TupleRow]] = {}
    yield opened
    for connection in opened.values():
        connection.close()


@pytest.fixture
def seen(store: Store, connections: dict[str, psycopg.Connection[TupleRow]]) -> Seen:
    def seen(name: str, costs: StepCosts | None, *, slots: int = 4) -> None:
        info = {STEP_COSTS: None if costs is None else asdict(costs), "max_num_sequences": 64}
        with store.transaction() as session:
            workers.seen(session, name=name, queue=GPU_QUEUE, slots=slots, info=info)
        url = without_driver(settings().direct_url)
        connections[name] = psycopg.connect(url, autocommit=True)
        presence.announce(connections[name], name)

    return seen


def known(store: Store, **batch: object) -> str:
    """Submit a batch as if outputs of 100 tokens were known of it."""
    batch_id = submit(store, **batch)  # type: ignore[arg-type]
    with store.transaction() as session:
        session.execute(
            text("UPDATE batches SET num_completed = 1, output_tokens = 100 WHERE id = :id"), {"id": batch_id}
        )
    return batch_id


def make_runner(store: Store, engine: FakeEngine) -> ShardRunner:
    return ShardRunner(
        store=store,
        saver=ShardSaver(store),
        engine=cast("EngineThread", engine),
        keeper=keeper(store, engine),
        save_seconds=0.05,
        drain_seconds=0.2,
        draining=threading.Event(),
        tail=Tail(store, "gpu@test", None),
    )


def test_a_runner_leaves_a_shard_while_a_faster_worker_lives(
    store: Store, seen: Seen, connections: dict[str, psycopg.Connection[TupleRow]]
) -> None:
    runner = make_runner(store, FakeEngine())
    assert runner.tail is not None
    known(store, num_requests=4, shard_size=4)
    seen("gpu@test", SLOW)
    assert not runner.tail.leaves_next()
    seen("gpu@loading", FAST, slots=0)
    seen("gpu@new", None)
    assert not runner.tail.leaves_next(), "one is not ready, and nothing is known of the other's speed"
    seen("gpu@fast", FAST)
    assert runner.run(1) is Ending.NOTHING_TO_DO
    assert not Tail(store, "gpu@fast", None).leaves_next()
    assert not Tail(store, "gpu@new", None).leaves_next()
    with store.transaction() as session:
        assert session.scalar(text("SELECT state FROM shards")) == "ready"
    connections["gpu@fast"].close()
    eventually(lambda: not runner.tail.leaves_next(), what="the end of a worker that has died")


def test_what_others_have_begun_is_left_to_nobody(store: Store, seen: Seen) -> None:
    known(store, num_requests=4, shard_size=4)
    seen("gpu@test", SLOW)
    seen("gpu@fast", FAST)
    slow = Tail(store, "gpu@test", None)
    assert slow.leaves_next()
    claimed = held(store, 1, worker="gpu@fast")
    assert not slow.leaves_next(), "nothing is ready"
    with store.transaction() as session:
        shards.release(session, claimed)
    assert not slow.leaves_next()


def test_a_slow_worker_gives_back_what_it_holds_once_nothing_else_waits(store: Store, seen: Seen) -> None:
    known(store, num_requests=8, shard_size=4)
    seen("gpu@test", SLOW)
    engine = FakeEngine()
    runner = make_runner(store, engine)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(runner.run, 1)
        assert engine.submitted.wait(60)
        engine.partial = {(1, 0): (5, 6, 7)}
        seen("gpu@fast", FAST)
        again = Tail(store, "gpu@test", None)
        assert not again.gives_back(1, "batch", num_left=4), "who has nothing to do takes the other shard"
        other = held(store, 2, worker="gpu@fast")
        assert runner.tail is not None
        runner.tail._look_at = 0.0
        assert running.result(60) is Ending.HANDED_BACK
    with store.transaction() as session:
        assert session.scalars(text("SELECT state FROM shards ORDER BY id")).all() == ["ready", "running"]
    endings = {runner.run(1), runner.run_this(1)}
    assert endings == {Ending.NOTHING_TO_DO}, "it has just given it back"
    taken = held(store, 1, worker="gpu@fast")
    assert taken.attempt == 1, "to give back is no failure"
    first = taken.requests[0].partial_output
    assert first is not None
    assert first.token_ids == [5, 6, 7]
    with store.transaction() as session:
        session.execute(text("UPDATE batches SET num_completed = 0"))
    run_to_the_end(store, taken)
    run_to_the_end(store, other)
    with store.transaction() as session:
        assert session.scalar(text("SELECT count(*) FROM results WHERE sequence IS NOT NULL")) == 8


def test_a_shard_that_somebody_has_died_of_stays(store: Store, seen: Seen) -> None:
    known(store, num_requests=4, shard_size=4)
    seen("gpu@test", SLOW)
    seen("gpu@fast", FAST)
    runner = make_runner(store, FakeEngine())
    assert runner.tail is not None
    lost = Run(held(store, 1, worker="gpu@test"), Lookup(), RunMeters())
    assert runner._gives_back(lost)
    runner.tail._look_at = 0.0
    lost.held = replace(lost.held, attempt=2)
    assert not runner._gives_back(lost)


def test_what_nothing_is_known_of_is_taken(store: Store, seen: Seen) -> None:
    submit(store, num_requests=4, shard_size=4, max_tokens=100)
    seen("gpu@test", SLOW)
    seen("gpu@fast", FAST)
    slow = Tail(store, "gpu@test", None)
    assert not slow.leaves_next()
    with store.transaction() as session:
        session.execute(text("UPDATE batches SET num_completed = 1, output_tokens = 100"))
    assert slow.leaves_next()


def test_only_the_end_of_a_backlog_is_left(store: Store, seen: Seen) -> None:
    batch_id = known(store, num_requests=MAX_SHARDS, shard_size=1)
    seen("gpu@test", replace(SLOW, step=4.0))
    seen("gpu@fast", FAST)
    slow = Tail(store, "gpu@test", None)
    assert slow.leaves_next()
    with store.transaction() as session:
        control.pause(session, batch_id)
    assert not slow.leaves_next(), "what is paused is not ready"
    with store.transaction() as session:
        control.resume(session, batch_id)
    known(store, num_requests=1, completion_window=timedelta(hours=1))
    assert not slow.leaves_next()
