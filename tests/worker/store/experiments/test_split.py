"""In an A/B experiment, the other model runs some requests in place of the batch's own."""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
from sqlalchemy import func, select, text

from tests.fixtures.batches import LEASE, claim, held, result
from tests.worker.store.experiments.test_experiments import PARAMS, A, B, always, look, sweep
from worker.contract.models import Model
from worker.contract.states import BatchStatus, ExperimentMode, ExperimentStatus
from worker.quality.comparison import Verdict
from worker.quality.expected import Expected
from worker.store.batches import batches
from worker.store.batches.batches import NewBatch
from worker.store.database.session import Store
from worker.store.experiments import experiments
from worker.store.experiments.experiments import NewExperiment, NothingToCompareError
from worker.store.requests.requests import NewRequest
from worker.store.rows.batches import BatchRow
from worker.store.rows.experiments import ExperimentLineRow
from worker.store.rows.requests import RequestRow
from worker.store.rows.shards import ShardRow
from worker.store.shards import control, counting, reassigning, shards
from worker.store.shards.shards import AfterSave, Progress
from worker.store.watching import retention

Right = Callable[[int], bool]


def submit(
    store: Store, num_requests: int = 16, *, share: float = 0.5, shard_size: int = 4, **batch: object
) -> str:
    """Store a batch with an A/B experiment on it; the right output is the position."""
    requests = [
        NewRequest(f"prompt {i}", 10, 3, expected=Expected.from_json(str(i))) for i in range(num_requests)
    ]
    new = NewBatch(**{"params": PARAMS, "requests": requests, "model": A} | batch)  # type: ignore[arg-type]
    with store.of_tenant("default").transaction() as session:
        batch_id = batches.submit(session, new, shard_size=shard_size)
        experiment = NewExperiment(B, share, 0.0, 0.1, ExperimentMode.AB)
        experiments.start(session, batch_id, experiment, shard_size=shard_size)
    return batch_id


def ready(store: Store, batch_id: str, model: Model) -> list[int]:
    """Return the shards of a batch that wait for a model."""
    with store.transaction() as session:
        found = select(ShardRow.id).where(
            ShardRow.batch_id == batch_id,
            ShardRow.state == "ready",
            ShardRow.model_fingerprint == model.fingerprint,
        )
        return list(session.scalars(found.order_by(ShardRow.id)))


def run(store: Store, batch_id: str, model: Model, right: Right, most: int | None = None) -> None:
    """Have a worker of a model run at most so many of its shards."""
    for shard_id in ready(store, batch_id, model)[:most]:
        claimed = held(store, shard_id)
        numbers = {one.id: int(str(one.prompts[0]).split()[1]) for one in claimed.requests}
        results = [
            result(request_id, output=str(number) if right(number) else "wrong")
            for request_id, number in numbers.items()
        ]
        with store.transaction() as session:
            shards.save(session, [Progress(claimed, results, running_tokens=0, is_last=True)], lease=LEASE)
        counting.follow(store, batch_id)


def counts(store: Store, batch_id: str) -> dict[str, int]:
    """Return the requests of a batch by the model that their shards wait for."""
    with store.transaction() as session:
        rows = session.execute(
            select(ShardRow.model_fingerprint, func.count())
            .join(RequestRow, RequestRow.shard_id == ShardRow.id)
            .where(ShardRow.batch_id == batch_id)
            .group_by(ShardRow.model_fingerprint)
        )
        return {row[0]: row[1] for row in rows}


def test_each_request_waits_for_one_model(store: Store) -> None:
    batch_id = submit(store, 40, share=0.3)
    assert counts(store, batch_id) == {A.fingerprint: 28, B.fingerprint: 12}
    with store.transaction() as session:
        sizes = session.execute(
            select(ShardRow.num_requests, func.count(RequestRow.id))
            .join(RequestRow, RequestRow.shard_id == ShardRow.id)
            .where(ShardRow.batch_id == batch_id)
            .group_by(ShardRow.id)
        ).all()
        num_shards = session.scalar(select(func.count(ShardRow.id)))
        lines = session.scalars(select(ExperimentLineRow)).all()
        under_b = set(
            session.scalars(
                select(RequestRow.position)
                .join(ShardRow, ShardRow.id == RequestRow.shard_id)
                .where(ShardRow.model_fingerprint == B.fingerprint)
            )
        )
    assert all(stored == found for stored, found in sizes)
    assert len(sizes) == num_shards, "no shard is empty"
    assert {line.shadow_position for line in lines} == under_b
    others = {line.position for line in lines}
    assert len(others) == len(lines) == 12
    assert not others & under_b
    view = look(store, batch_id)
    assert (view.mode, view.num_requests, view.num_expected) == (ExperimentMode.AB, 12, 12)


def test_a_worse_model_gives_its_requests_back(store: Store) -> None:
    batch_id = submit(store, 160, shard_size=20)
    run(store, batch_id, A, always)
    run(store, batch_id, B, lambda _: False, most=3)
    late = held(store, ready(store, batch_id, B)[0])
    sweep(store)
    view = look(store, batch_id)
    assert (view.status, view.verdict) == (ExperimentStatus.ROLLED_BACK, Verdict.WORSE)
    assert view.report.comparison.difference == -1
    assert view.report.comparison.num_scored == 60
    assert ready(store, batch_id, B) == []
    with store.transaction() as session:
        results = [result(one.id) for one in late.requests]
        progress = [Progress(late, results, running_tokens=0, is_last=True)]
        assert shards.save(session, progress, lease=LEASE) == [AfterSave.LOST]
        assert experiments.open_ids(session, limit=10) == []
    run(store, batch_id, A, always)
    with store.transaction() as session:
        batch = session.get_one(BatchRow, batch_id)
        assert (batch.status, batch.num_completed) == (BatchStatus.COMPLETED, 160)
        outputs = session.scalars(text("SELECT output FROM results")).all()
    assert Counter(output == "wrong" for output in outputs) == {False: 100, True: 60}


def test_the_same_model_is_neither_better_nor_worse(store: Store) -> None:
    batch_id = submit(store, 80, shard_size=10)
    for model in (A, B):
        run(store, batch_id, model, lambda i: i % 2 == 0)
        sweep(store)
    view = look(store, batch_id)
    assert (view.status, view.verdict) == (ExperimentStatus.ENDED, Verdict.UNDECIDED)
    assert view.report.comparison.num_scored == 40
    assert (view.report.failed.a, view.report.failed.b, view.report.length.a) == (0, 0, 7)
    with store.transaction() as session:
        compared = session.scalars(select(ExperimentLineRow.agrees)).all()
    assert compared == [None] * 40, "no output is compared with another request's"
    assert view.report.comparison.difference_interval[0] < 0 < view.report.comparison.difference_interval[1]


def test_a_planted_loss_is_found(store: Store) -> None:
    batch_id, source = submit(store, 1000, shard_size=125), random.Random(3)
    wrong = {A: 0.05, B: 0.35}
    for _ in range(4):
        for model, share in wrong.items():
            run(store, batch_id, model, lambda _, share=share: source.random() > share, most=1)  # type: ignore[misc]
        sweep(store)
    view = look(store, batch_id)
    assert view.verdict is Verdict.WORSE
    assert view.report.comparison.num_scored < 500


def test_identical_requests_stay_together(store: Store) -> None:
    requests = [
        NewRequest(f"prompt {i // 2 if i < 8 else i}", 10, 3, params=replace(PARAMS, temperature=0))
        for i in range(12)
    ]
    batch_id = submit(store, requests=requests, share=0.5)
    assert counts(store, batch_id) == {A.fingerprint: 10, B.fingerprint: 2}
    with store.transaction() as session:
        positions = session.scalars(
            select(RequestRow.position)
            .join(ShardRow, ShardRow.id == RequestRow.shard_id)
            .where(ShardRow.model_fingerprint == B.fingerprint)
        ).all()
    assert set(positions) <= {8, 9, 10, 11}
    with pytest.raises(NothingToCompareError):
        submit(store, requests=requests[:9])


def test_priorities_and_timeouts_stay(store: Store) -> None:
    requests = [
        NewRequest(f"prompt {i}", 10, 3, priority=i % 2, timeout_seconds=100.0 + i) for i in range(20)
    ]
    batch_id = submit(store, requests=requests, share=0.5)
    with store.transaction() as session:
        rows = session.execute(
            select(
                ShardRow.priority, RequestRow.position, ShardRow.timeout_at, ShardRow.id, BatchRow.created_at
            )
            .join(RequestRow, RequestRow.shard_id == ShardRow.id)
            .join(BatchRow, BatchRow.id == ShardRow.batch_id)
            .where(ShardRow.batch_id == batch_id)
        ).all()
    assert all(row.priority == row.position % 2 for row in rows)
    for row in rows:
        first = min(one.position for one in rows if one.id == row.id)
        assert (row.timeout_at - row.created_at).total_seconds() == pytest.approx(100 + first)


def test_a_cancel_ends_it(store: Store) -> None:
    batch_id = submit(store)
    with store.transaction() as session:
        batches.cancel(session, batch_id)
    sweep(store)
    assert look(store, batch_id).status is ExperimentStatus.ENDED
    assert look(store, batch_id).report.comparison.num_lines == 0


def test_a_reassigned_batch_waits_for_its_new_model_alone(store: Store) -> None:
    batch_id, new = submit(store), Model("third", "c" * 32, "t")
    with store.transaction() as session:
        reassigning.rebind(session, batch_id, new)
    sweep(store)
    assert look(store, batch_id).status is ExperimentStatus.ENDED
    assert counts(store, batch_id) == {new.fingerprint: 16}


def test_a_deletion_takes_everything_along(store: Store) -> None:
    batch_id = submit(store)
    for model in (A, B):
        run(store, batch_id, model, always)
    with store.transaction() as session:
        assert control.remove(session, batch_id) is control.Done.YES
    for _ in range(2):
        sweep(store)
        with store.transaction() as session:
            while retention.drop_deleted(session, limit=100):
                pass
    with store.transaction() as session:
        for table in ("batches", "shards", "requests", "results", "experiments", "experiment_lines"):
            assert session.scalar(text(f"SELECT count(*) FROM {table}")) == 0, table


def test_a_roll_back_waits_for_no_lock(store: Store) -> None:
    """The sweep holds the experiment; a promotion, which holds the batch, waits for that."""
    batch_id = submit(store)
    with store.transaction() as session:
        only = {ExperimentStatus.RUNNING}
        assert experiments.end(session, experiments.id_of(batch_id), ExperimentStatus.ROLLED_BACK, only=only)
    with store.transaction() as session:
        assert batches.lock(session, batch_id) is not None
        sweep(store)
    assert len(ready(store, batch_id, B)) == 2
    sweep(store)
    assert ready(store, batch_id, B) == []
    assert claim(store, ready(store, batch_id, A)[0]) is not None
