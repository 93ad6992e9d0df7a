"""A shard is run by workers of the model that its batch was accepted for, and by no others."""

from collections.abc import Iterable
from datetime import timedelta

import pytest

from tests.fixtures.batches import LEASE, result, serving, submit
from worker.contract.messages import GPU_QUEUE, gpu_queue
from worker.contract.models import Model, ServedModel
from worker.contract.states import Lane
from worker.store.batches import retries
from worker.store.counts import meters
from worker.store.database.session import Store
from worker.store.requests import models, result_views
from worker.store.shards import fair_share, fair_slots, leases, poison, shards, tickets
from worker.store.shards.shards import Claim, Progress
from worker.store.watching import queueing, workers
from worker.values.outcomes import Outcome

A = Model("demo", "a" * 32, "t" * 32)
B = Model("other", "b" * 32, "u" * 32)
SOON = timedelta(seconds=60)


def claim_as(store: Store, shard_id: int, served: ServedModel | None) -> Claim | None:
    with store.transaction() as session:
        return shards.claim(session, shard_id, worker="gpu@here", lease=LEASE, model=served)


def ticketed(store: Store, model: Model | None) -> list[str]:
    with store.transaction() as session:
        fingerprint = None if model is None else model.fingerprint
        issued = tickets.issue_shards(session, window=8, reissue_after=SOON, model=fingerprint)
    return [ticket.queue for ticket in issued]


def registered(store: Store, model: Model) -> ServedModel:
    with store.transaction() as session:
        return models.register(session, ServedModel(model, "float32", "f32"))


def test_no_worker_claims_another_models_shard(store: Store) -> None:
    submit(store, num_requests=1, model=A)
    assert claim_as(store, 1, serving(B.fingerprint)) is None
    assert claim_as(store, 1, None) is None, "nor does one that names no model"
    assert claim_as(store, 1, serving(A.fingerprint)) is not None


def test_what_was_accepted_before_models_were_recorded_is_anybodys(store: Store) -> None:
    submit(store, num_requests=2, shard_size=1)
    assert claim_as(store, 1, serving(B.fingerprint)) is not None
    assert claim_as(store, 2, serving(A.fingerprint)) is not None


def test_a_ticket_goes_to_the_queue_of_its_model(store: Store) -> None:
    submit(store, num_requests=2, shard_size=1, model=A)
    submit(store, num_requests=1, shard_size=1, model=B)
    submit(store, num_requests=1, shard_size=1)
    assert ticketed(store, A) == [gpu_queue(A.fingerprint)] * 2
    assert ticketed(store, B) == [gpu_queue(B.fingerprint)]
    assert ticketed(store, None) == [GPU_QUEUE]
    assert gpu_queue(A.fingerprint) != gpu_queue(B.fingerprint)


def test_one_models_backlog_leaves_another_its_window(store: Store) -> None:
    submit(store, num_requests=20, shard_size=1, model=A)
    submit(store, num_requests=3, shard_size=1, model=B)
    assert len(ticketed(store, A)) == 8
    assert len(ticketed(store, B)) == 3


def test_whose_turn_it_is_is_decided_within_a_model(store: Store) -> None:
    submit(store, num_requests=1, model=A)
    submit(store, num_requests=1, model=B)
    ticketed(store, A)
    ticketed(store, B)
    with store.transaction() as session:
        turns = [fair_share.first(session, model=one.fingerprint) for one in (B, A)]
        assert [None if turn is None else turn.shard_id for turn in turns] == [2, 1]
        assert fair_share.first(session, model="c" * 32) is None


def test_extra_slots_are_for_a_workers_own_model(store: Store) -> None:
    submit(store, num_requests=1, model=A)
    ticketed(store, A)

    def found(model: Model) -> list[int | None]:
        with store.transaction() as session:
            due = fair_slots.next_shard(session, worker="w", slots=4, model=model.fingerprint)
            return [due, *fair_slots.begun(session, limit=4, model=model.fingerprint)]

    assert found(B) == [None]
    assert found(A) == [1]
    held = claim_as(store, 1, serving(A.fingerprint))
    assert held is not None
    with store.transaction() as session:
        shards.release(session, held)
    assert found(B) == [None]
    assert found(A)[1:] == [1]


def test_interactive_work_waits_for_its_model(store: Store) -> None:
    submit(store, num_requests=1, model=A, lane=Lane.INTERACTIVE)

    def ready(model: Model) -> Iterable[int]:
        with store.transaction() as session:
            return fair_slots.ready_interactive(session, limit=4, model=model.fingerprint)

    assert ready(B) == []
    assert ready(A) == [1]


def test_a_suspect_of_another_model_has_nobody_wait(store: Store) -> None:
    submit(store, num_requests=1, model=A)
    with store.transaction() as session:
        held = shards.claim(session, 1, worker="w", lease=timedelta(seconds=-1), model=serving(A.fingerprint))
        assert held is not None
    with store.transaction() as session:
        leases.return_expired(session, 1, held.batch_id, max_attempts=1)
    with store.transaction() as session:
        assert poison.is_suspect(session, 1, model=A.fingerprint)
        assert not poison.is_suspect(session, 1, model=B.fingerprint)


def test_a_result_names_the_model_that_made_it(store: Store) -> None:
    batch_id = submit(store, num_requests=2, shard_size=2, model=A)
    served = registered(store, A)
    assert registered(store, A) == served, "it is registered once"
    held = claim_as(store, 1, served)
    assert held is not None
    with store.transaction() as session:
        shards.save(session, [Progress(held, [result(1)], 0)], lease=LEASE)
        page = result_views.page(session, batch_id, after=0, limit=10)
    assert [(one.model.name, one.model.fingerprint, one.model.dtype) for one in page if one.model] == [
        ("demo", A.fingerprint, "f32")
    ]


def test_a_retry_waits_for_the_same_model(store: Store) -> None:
    batch_id = submit(store, num_requests=1, model=A)
    served = serving(A.fingerprint)
    held = claim_as(store, 1, served)
    assert held is not None
    with store.transaction() as session:
        failed = result(1, outcome=Outcome.FAILED)
        shards.save(session, [Progress(held, [failed], 0, is_last=True)], lease=LEASE)
    with store.transaction() as session:
        assert retries.retry(session, batch_id, with_cancelled=False, shard_size=4)
    assert claim_as(store, 2, serving(B.fingerprint)) is None
    assert claim_as(store, 2, served) is not None


@pytest.mark.parametrize("model", [A, B])
def test_workers_are_counted_by_model(store: Store, model: Model) -> None:
    with store.transaction() as session:
        workers.seen(session, name="gpu@a/1", queue=GPU_QUEUE, slots=4, info={}, model=A.fingerprint)
        workers.seen(session, name="gpu@b/2", queue=GPU_QUEUE, slots=0, info={}, model=B.fingerprint)
    is_a = model is A
    with store.transaction() as session:
        assert workers.slots(session, GPU_QUEUE, model=model.fingerprint) == (4 if is_a else 0)
        assert workers.count(session, GPU_QUEUE, model=model.fingerprint) == 1
        found = workers.slots_by_model(session, GPU_QUEUE)
        assert found == {None: 4, A.fingerprint: 4}, "what loads is not ready"
        found = queueing.capacity(session, model=model.fingerprint)
    assert (found.num_ready, found.num_loading) == ((1, 0) if is_a else (0, 1))


def test_meters_tell_models_apart(store: Store) -> None:
    with store.transaction() as session:
        meters.add(session, "gpu@a/1", {"steps": 3}, model=A.fingerprint)
        meters.add(session, "gpu@b/2", {"steps": 5}, model=B.fingerprint)
    with store.transaction() as session:
        assert meters.measured(session, minutes=5).total == {"steps": 8}
        assert meters.measured(session, minutes=5, model=B.fingerprint).total == {"steps": 5}
