import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from itertools import repeat
from typing import cast

import pytest
from sqlalchemy import text

from tests.fixtures.batches import claim, submit
from tests.fixtures.deployment import eventually
from tests.fixtures.fake_engine import FakeEngine, FakeEngines, keeper
from worker.contract.states import BatchStatus
from worker.engine.engine_thread import EngineThread
from worker.runs.run import Ending
from worker.runs.shard_runner import ShardRunner
from worker.runs.shard_saver import ShardSaver
from worker.store.batches import batch_views, batches
from worker.store.batches.batch_views import BatchView
from worker.store.batches.batches import NewBatch
from worker.store.database.session import Store
from worker.store.requests import partial_outputs, result_views
from worker.store.requests.requests import NewRequest
from worker.store.requests.result_views import ResultView
from worker.store.shards import control, leases, shards, tickets
from worker.store.shards.shards import Claim
from worker.values.results import PartialOutput
from worker.values.sampling import SamplingParams


class Bench:
    """A runner on a fake engine, running shard 1 of a new batch in a thread."""

    def __init__(self, store: Store, pool: ThreadPoolExecutor, engine: FakeEngine) -> None:
        self.store = store
        self.engine = engine
        self.draining = threading.Event()
        self.runner = ShardRunner(
            store=store,
            saver=ShardSaver(store),
            engine=cast("EngineThread", self.engine),
            keeper=keeper(store, self.engine),
            save_seconds=0.05,
            drain_seconds=0.2,
            draining=self.draining,
        )
        self._pool = pool

    def start(self, **options: object) -> Future[Ending]:
        self.batch_id = submit(self.store, num_requests=4, shard_size=4, **options)  # type: ignore[arg-type]
        return self.go_on()

    def start_on(self, batch: NewBatch) -> Future[Ending]:
        with self.store.transaction() as session:
            self.batch_id = batches.submit(session, batch, shard_size=4)
        return self.go_on()

    def go_on(self) -> Future[Ending]:
        ending = self._pool.submit(self.runner.run, 1)
        assert self.engine.submitted.wait(60)
        return ending

    def take_over(self) -> Claim:
        while True:
            with self.store.transaction() as session:
                session.execute(text("UPDATE shards SET state = 'ready'"))
            # The holder may renew its lease in between, as it may while nobody else has claimed.
            if (taken := claim(self.store, 1, worker="gpu@other")) is not None:
                return taken

    def kept(self) -> dict[int, list[int]]:
        with self.store.transaction() as session:
            rows = session.execute(text("SELECT request_id, token_ids FROM partial_outputs"))
            return dict(map(tuple, rows))

    def view(self) -> BatchView:
        with self.store.transaction() as session:
            found = batch_views.get(session, self.batch_id)
        assert found is not None
        return found

    def results(self) -> list[ResultView]:
        with self.store.transaction() as session:
            return result_views.page(session, self.batch_id, after=0, limit=10)


@pytest.fixture
def bench(store: Store) -> Iterator[Bench]:
    with ThreadPoolExecutor(2) as pool:
        bench = Bench(store, pool, FakeEngine())
        yield bench
        bench.draining.set()  # a run that a failed test has left must not keep the pool


def test_a_shard_runs_to_its_end(bench: Bench) -> None:
    ending = bench.start()
    bench.engine.finish(2, 0)
    eventually(lambda: bench.view().num_completed == 2)
    bench.engine.finish(1, 3)
    assert ending.result(60) is Ending.FINISHED
    view = bench.view()
    assert (view.status, view.num_completed, view.output_tokens) == (BatchStatus.COMPLETED, 4, 12)
    assert [result.output for result in bench.results()] == [f"out prompt {i}" for i in (2, 0, 1, 3)]


def test_the_engine_is_given_what_the_request_says(bench: Bench) -> None:
    ending = bench.start(max_tokens=17)
    bench.engine.finish(0, 1, 2, 3)
    ending.result(60)
    params = [request.params for request in bench.engine.requests]
    assert {replace(one, seed=None) for one in params} == {SamplingParams(17, temperature=0.7)}
    assert len({one.seed for one in params}) == 4
    assert [request.prompt for request in bench.engine.requests] == [f"prompt {i}" for i in range(4)]
    assert {request.job for request in bench.engine.requests} == {bench.batch_id}


def test_live_tokens_show_before_anything_is_finished(bench: Bench) -> None:
    ending = bench.start()
    bench.engine.work.num_output_tokens = 9
    eventually(lambda: bench.view().running_tokens == 9)
    bench.engine.finish(0)
    eventually(lambda: bench.view().num_completed == 1)
    assert (bench.view().running_tokens, bench.view().output_tokens) == (9, 3)
    bench.engine.finish(1, 2, 3)
    assert ending.result(60) is Ending.FINISHED
    assert bench.view().running_tokens == 0


def test_one_bad_request_does_not_fail_the_others(bench: Bench) -> None:
    ending = bench.start()
    bench.engine.finish(1, error="the prompt is empty")
    bench.engine.finish(0, 2, 3)
    assert ending.result(60) is Ending.FINISHED
    view = bench.view()
    assert (view.status, view.num_completed, view.num_failed) == (BatchStatus.COMPLETED, 3, 1)
    failed = next(result for result in bench.results() if result.error_code)
    assert (failed.position, failed.error_message, failed.output) == (1, "the prompt is empty", None)


def test_a_cancelled_batch_stops_the_work(bench: Bench) -> None:
    ending = bench.start()
    bench.engine.finish(3)
    with bench.store.transaction() as session:
        batches.cancel(session, bench.batch_id)
    assert ending.result(60) is Ending.STOPPED
    assert bench.engine.cancelled.is_set()
    view = bench.view()
    assert (view.status, view.num_completed, view.num_cancelled) == (BatchStatus.CANCELLED, 1, 3)


def test_a_push_is_felt_before_the_next_save(bench: Bench) -> None:
    bench.runner = replace(bench.runner, save_seconds=300.0)
    ending = bench.start()
    with bench.store.transaction() as session:
        batches.cancel(session, bench.batch_id)
    bench.runner.batch_changed("batch_other")
    bench.runner.batch_changed(bench.batch_id)
    assert ending.result(60) is Ending.STOPPED


def test_what_a_cancel_cuts_off_is_kept(bench: Bench) -> None:
    ending = bench.start()
    bench.engine.partial = {(2, 0): (5, 6, 7, 8)}
    with bench.store.transaction() as session:
        batches.cancel(session, bench.batch_id)
    assert ending.result(60) is Ending.STOPPED
    cut = {result.position: result for result in bench.results()}[1]
    assert (cut.output, cut.num_output_tokens, cut.finish_reason) == ("text of 4", 4, "cancelled")
    assert cut.error_code == "batch_cancelled"
    view = bench.view()
    assert (view.status, view.num_cancelled, view.output_tokens) == (BatchStatus.CANCELLED, 4, 4)


def test_one_request_is_cancelled_and_the_others_go_on(bench: Bench) -> None:
    ending = bench.start()
    bench.engine.partial = {(3, 0): (5, 6)}
    with bench.store.transaction() as session:
        control.cancel_request(session, bench.batch_id, 2)
    eventually(lambda: bench.view().num_cancelled == 1)
    bench.engine.finish(0, 1, 3)
    assert ending.result(60) is Ending.FINISHED
    assert bench.view().status is BatchStatus.COMPLETED
    cut = next(result for result in bench.results() if result.error_code)
    assert (cut.position, cut.output, cut.error_code) == (2, "text of 2", "request_cancelled")


def test_a_paused_batch_goes_on_from_what_it_had(bench: Bench) -> None:
    ending = bench.start()
    bench.engine.partial = {(1, 0): (5, 6, 7), (2, 0): ()}
    bench.engine.finish(3)
    with bench.store.transaction() as session:
        control.pause(session, bench.batch_id)
    assert ending.result(60) is Ending.HANDED_BACK
    assert bench.view().status is BatchStatus.PROCESSING
    assert bench.runner.run(1) is Ending.NOTHING_TO_DO
    with bench.store.transaction() as session:
        control.resume(session, bench.batch_id)
    bench.engine.submitted.clear()
    again = bench.go_on()
    given = {request.id: tuple(request.output_token_ids) for request in bench.engine.requests}
    assert given == {(1, 0): (5, 6, 7), (2, 0): (), (3, 0): ()}
    eventually(lambda: bench.view().running_tokens == 3)
    bench.engine.finish(0, 1, 2)
    assert again.result(60) is Ending.FINISHED
    with bench.store.transaction() as session:
        assert session.scalar(text("SELECT count(*) FROM partial_outputs")) == 0


def test_long_outputs_are_saved_while_they_run(bench: Bench) -> None:
    bench.runner = replace(bench.runner, checkpoint_tokens=4)
    ending = bench.start()
    bench.engine.partial = {(1, 0): (5, 6, 7), (2, 0): (1, 2, 3, 4, 5)}
    eventually(lambda: bench.kept() == {2: [1, 2, 3, 4, 5]})
    bench.engine.partial = {(1, 0): (5, 6, 7, 8), (2, 0): (1, 2, 3, 4, 5, 6)}
    eventually(lambda: bench.kept() == {1: [5, 6, 7, 8], 2: [1, 2, 3, 4, 5]})
    # Its worker dies: the next one goes on from there, and nobody computes what was finished.
    bench.engine.finish(2)
    eventually(lambda: bench.view().num_completed == 1)
    taken = bench.take_over()
    kept = {one.id: one.partial_output.token_ids for one in taken.requests if one.partial_output}
    assert kept == {1: [5, 6, 7, 8], 2: [1, 2, 3, 4, 5]}
    assert {one.id for one in taken.requests} == {1, 2, 4}
    assert ending.result(60) is Ending.LOST


def test_tokens_of_another_model_are_not_gone_on_from(bench: Bench) -> None:
    bench.batch_id = submit(bench.store, num_requests=4, shard_size=4)
    with bench.store.transaction() as session:
        kept = {1: PartialOutput((1, 2), "a", 7), 2: PartialOutput((3, 4), "b")}
        partial_outputs.keep(session, kept)
    ending = bench.go_on()
    assert [tuple(one.output_token_ids) for one in bench.engine.requests] == [(), (3, 4), (), ()]
    bench.engine.finish(0, 1, 2, 3)
    assert ending.result(60) is Ending.FINISHED


def test_a_suspect_waits_until_it_is_alone(bench: Bench) -> None:
    ending = bench.start()
    bench.batch_id = submit(bench.store, num_requests=1, shard_size=1)
    with bench.store.transaction() as session:
        session.execute(text("UPDATE shards SET is_suspect = true WHERE id = 2"))
    first = bench.engine.work
    alone = bench._pool.submit(bench.runner.run, 2)
    with pytest.raises(TimeoutError):
        alone.result(0.3)
    assert bench.engine.work is first
    bench.engine.finish(0, 1, 2, 3)
    assert ending.result(60) is Ending.FINISHED
    eventually(lambda: bench.engine.work is not first)
    bench.engine.finish(0)
    assert alone.result(60) is Ending.FINISHED
    assert bench.view().status is BatchStatus.COMPLETED


def test_a_suspect_gives_way_to_what_others_have_left(bench: Bench) -> None:
    submit(bench.store, num_requests=2, shard_size=1)
    with bench.store.transaction() as session:
        session.execute(text("UPDATE shards SET fence = 1, is_suspect = id = 1"))
    assert bench.runner.run_this(1) is Ending.NOTHING_TO_DO
    begun = bench._pool.submit(bench.runner.run_this, 2)
    assert bench.engine.submitted.wait(60)
    first = bench.engine.work
    suspect = bench._pool.submit(bench.runner.run_this, 1)
    bench.engine.finish(0)
    assert begun.result(60) is Ending.FINISHED
    eventually(lambda: bench.engine.work is not first)
    bench.engine.finish(0)
    assert suspect.result(60) is Ending.FINISHED


def test_an_engine_that_does_not_stop_is_left(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.runs.run.CUT_SECONDS", 0.2)
    ending = bench.start()
    bench.engine.stuck_for = 100.0
    with bench.store.transaction() as session:
        batches.cancel(session, bench.batch_id)
    assert ending.result(60) is Ending.STOPPED
    assert bench.view().status is BatchStatus.CANCELLED


def test_draining_hands_the_rest_back(bench: Bench) -> None:
    ending = bench.start()
    bench.engine.finish(0)
    bench.draining.set()
    assert ending.result(60) is Ending.HANDED_BACK
    assert bench.engine.cancelled.is_set()
    again = claim(bench.store, 1)
    assert again is not None
    assert (again.attempt, len(again.requests)) == (1, 3)


def test_draining_lets_what_is_nearly_done_finish(bench: Bench) -> None:
    bench.runner = replace(bench.runner, drain_seconds=30.0)
    ending = bench.start()
    bench.draining.set()
    bench.engine.finish(0, 1, 2, 3)
    assert ending.result(60) is Ending.FINISHED


def test_a_lost_shard_is_left_to_its_new_holder(bench: Bench) -> None:
    ending = bench.start()
    bench.take_over()
    bench.engine.finish(0, 1, 2, 3)
    assert ending.result(60) is Ending.LOST
    assert bench.results() == []


def test_a_stuck_engine_lets_its_lease_run_out(bench: Bench) -> None:
    bench.runner = replace(bench.runner, keeper=keeper(bench.store, bench.engine, timedelta(seconds=0.4)))
    ending = bench.start()
    bench.engine.stuck_for = 100.0

    def expired() -> bool:
        with bench.store.transaction() as session:
            return bool(leases.expired(session, limit=1))

    eventually(expired)
    bench.engine.stuck_for = 0.0
    bench.engine.finish(0, 1, 2, 3)
    assert ending.result(60) is Ending.FINISHED


def test_a_ticket_for_nothing_does_nothing(bench: Bench) -> None:
    assert bench.runner.run(12345) is Ending.NOTHING_TO_DO
    assert not bench.engine.submitted.is_set()


def test_tickets_that_come_together_start_as_many_shards(store: Store) -> None:
    submit(store, num_requests=12, shard_size=1)
    with store.transaction() as session:
        tickets.issue_shards(session, window=12, reissue_after=timedelta(minutes=1))
    engines = FakeEngines()
    with ThreadPoolExecutor(12) as pool:
        runner = Bench(store, pool, engines).runner
        endings = list(map(pool.submit, repeat(runner.run), range(1, 13)))
        eventually(lambda: len(engines.shards) + sum(ending.done() for ending in endings) == 12)
        for engine in engines.shards:
            engine.finish(0)
    assert [ending.result() for ending in endings] == [Ending.FINISHED] * 12


def test_results_outlive_an_absent_postgres(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    from sqlalchemy.exc import OperationalError

    save, failures = shards.save, iter(range(3))

    def away(*args: object, **options: object) -> list[shards.AfterSave]:
        if next(failures, None) is not None:
            raise OperationalError("save", None, Exception("the database is restarting"))
        return save(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(shards, "save", away)
    ending = bench.start()
    bench.engine.finish(0, 1, 2, 3)
    assert ending.result(60) is Ending.FINISHED
    assert bench.view().num_completed == 4


def test_a_request_that_cannot_be_put_fails_alone(bench: Bench) -> None:
    bad = SamplingParams(top_p=2.0)  # of a version with wider ranges
    new = NewBatch(
        params=SamplingParams(),
        requests=[
            NewRequest("one", max_tokens=5, params=bad),
            NewRequest("", max_tokens=5, inputs=("two", (3, 4))),
        ],
    )
    ending = bench.start_on(new)
    assert [request.prompt for request in bench.engine.requests] == ["two", (3, 4)]
    bench.engine.finish(1)
    eventually(lambda: bench.view().num_failed == 1)
    assert bench.view().num_completed == 0
    bench.engine.finish(0)
    assert ending.result(60) is Ending.FINISHED
    failed, completed = bench.results()
    assert failed.error_message == "top_p is out of range: 2.0"
    assert completed.payload is not None
    assert [choice.text for choice in completed.payload.choices] == ["out two", "out (3, 4)"]
    assert completed.num_output_tokens == 6


def test_a_copy_of_a_cancelled_request_is_run_after_all(bench: Bench) -> None:
    twins = [NewRequest(prompt="same", max_tokens=9), NewRequest(prompt="same", max_tokens=9)]
    ending = bench.start_on(NewBatch(params=SamplingParams(temperature=0), requests=twins))
    assert [request.prompt for request in bench.engine.requests] == ["same"]
    with bench.store.transaction() as session:
        control.cancel_request(session, bench.batch_id, 0)
    bench.runner.batch_changed(bench.batch_id)
    assert ending.result(10) is Ending.FINISHED
    assert [result.position for result in bench.results()] == [0]
    bench.engine.submitted.clear()
    ending = bench.go_on()
    assert len(bench.engine.requests) == 1
    bench.engine.finish(0)
    assert ending.result(10) is Ending.FINISHED
    view = bench.view()
    assert (view.status, view.num_completed, view.num_cancelled) == (BatchStatus.COMPLETED, 1, 1)
    assert [result.output for result in bench.results()][1] == "out same"
