"""An experiment runs requests under another model too, unseen, and follows its batch."""

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from sqlalchemy import select, text

from tests.fixtures.batches import LEASE, claim, held, result
from worker.contract.access import SHADOW
from worker.contract.models import Model
from worker.contract.prices import Prices
from worker.contract.states import BatchStatus, ExperimentStatus
from worker.quality.comparison import Verdict
from worker.quality.expected import Expected
from worker.settings import settings
from worker.store.batches import batch_views, batches
from worker.store.batches.batches import NewBatch
from worker.store.counts import usage
from worker.store.database.session import Store
from worker.store.experiments import experiment_views, experiments
from worker.store.experiments.experiment_views import ExperimentView
from worker.store.experiments.experiments import NewExperiment, NothingToCompareError
from worker.store.requests.requests import NewRequest
from worker.store.rows.batches import BatchRow
from worker.store.rows.experiments import ExperimentRow
from worker.store.rows.shards import ShardRow
from worker.store.shards import control, counting, reassigning, shards
from worker.store.shards.shards import Progress
from worker.store.watching import retention
from worker.values.caching import CacheMode
from worker.values.outcomes import FinishReason, Outcome
from worker.values.parsing import Family, Parsing
from worker.values.requests import EmbeddingParams
from worker.values.results import DeviceSeconds, NewResult
from worker.values.sampling import FormatKind, OutputFormat, SamplingParams
from worker.values.thinking import Thinking, ThinkingStyle
from worker.values.tool_loops import ToolLoop

A, B = Model("tiny", "a" * 32, "t"), Model("small", "b" * 32, "t")
PARAMS = SamplingParams(max_tokens=10)
THINKING = Parsing(Family.HERMES, thinking=Thinking(ThinkingStyle.TAGS))
LOOP = ToolLoop(url="https://example.com/tools", messages=[], tools=[], variables={})
Right = Callable[[int], bool]


def submit(
    store: Store, num_requests: int = 8, *, share: float = 1.0, shard_size: int = 4, **batch: object
) -> str:
    """Store a batch with an experiment on it; the right output is the position."""
    requests = [
        NewRequest(f"prompt {i}", 10, 3, custom_id=f"row-{i}", expected=Expected.from_json(str(i)))
        for i in range(num_requests)
    ]
    new = NewBatch(**{"params": PARAMS, "requests": requests, "model": A} | batch)  # type: ignore[arg-type]
    with store.of_tenant("default").transaction() as session:
        batch_id = batches.submit(session, new, shard_size=shard_size)
        experiment = NewExperiment(B, share, allowed_loss=0.0, resolution=0.1)
        experiments.start(session, batch_id, experiment, shard_size=shard_size)
    return batch_id


def look(store: Store, batch_id: str) -> ExperimentView:
    with store.of_tenant("default").transaction() as session:
        view = experiment_views.get(session, experiments.id_of(batch_id))
    assert view is not None
    return view


def shadow_of(store: Store, batch_id: str) -> BatchRow:
    with store.transaction() as session:
        row = session.scalars(select(ExperimentRow).where(ExperimentRow.batch_id == batch_id)).one()
        return session.get_one(BatchRow, row.shadow_id)


def run(store: Store, batch_id: str, right: Right, most: int | None = None) -> None:
    """Run at most so many ready shards of a batch; the requests for which `right` says so come out right."""
    with store.transaction() as session:
        ready = select(ShardRow.id).where(ShardRow.batch_id == batch_id, ShardRow.state == "ready")
        shard_ids = session.scalars(ready.order_by(ShardRow.id).limit(most)).all()
    for shard_id in shard_ids:
        claimed = held(store, shard_id)
        results = []
        for one in claimed.requests:
            number = int(str(one.prompts[0]).split()[1])
            output = str(number) if right(number) else "wrong"
            results.append(replace(result(one.id, output=output), seconds=DeviceSeconds(decode=0.5)))
        with store.transaction() as session:
            shards.save(session, [Progress(claimed, results, running_tokens=0, is_last=True)], lease=LEASE)
        counting.follow(store, batch_id)


def sweep(store: Store) -> None:
    with store.transaction() as session:
        found = experiments.open_ids(session, limit=10)
    for experiment_id in found:
        with store.transaction() as session:
            experiments.advance(session, experiment_id)


def always(_: int) -> bool:
    return True


def never(_: int) -> bool:
    return False


def test_the_customer_sees_and_pays_nothing_of_the_other_model(store: Store) -> None:
    batch_id = submit(store, callback_url="https://example.com/hook")
    shadow = shadow_of(store, batch_id)
    run(store, batch_id, always)
    run(store, shadow.id, never)
    sweep(store)
    own = store.of_tenant("default")
    with own.transaction() as session:
        assert [view.id for view in batch_views.page(session, after=None, limit=10)] == [batch_id]
        assert batch_views.get(session, shadow.id) is None
        view = batch_views.get(session, batch_id)
        used = usage.measured(session, minutes=1).total
    assert view is not None
    assert (view.status, view.num_requests, view.num_completed) == (BatchStatus.COMPLETED, 8, 8)
    assert used["output_tokens"] == view.output_tokens == 8 * 7
    with store.transaction() as session:
        by_tenant = usage.by_tenant(session)
        assert session.scalars(text("SELECT batch_id FROM webhook_events")).all() == [batch_id]
        of_a = session.scalars(text("SELECT DISTINCT batch_id FROM results WHERE output <> 'wrong'")).all()
    assert of_a == [batch_id]
    assert by_tenant[SHADOW + "default"]["output_tokens"] == 8 * 7


def test_each_model_runs_its_own(store: Store) -> None:
    batch_id = submit(store, share=0.5)
    shadow = shadow_of(store, batch_id)
    assert (shadow.model_fingerprint, shadow.num_requests, shadow.callback_url) == (B.fingerprint, 4, None)
    with store.transaction() as session:
        bound = session.execute(
            select(ShardRow.batch_id, ShardRow.model_fingerprint, ShardRow.tenant_id).distinct()
        ).all()
    assert {tuple(one) for one in bound} == {
        (batch_id, A.fingerprint, "default"),
        (shadow.id, B.fingerprint, SHADOW + "default"),
    }


def test_a_worse_model_is_rolled_back_and_claims_nothing_more(store: Store) -> None:
    batch_id = submit(store, 60, shard_size=20)
    shadow = shadow_of(store, batch_id)
    run(store, batch_id, always)
    run(store, shadow.id, never, most=2)
    sweep(store)
    view = look(store, batch_id)
    assert (view.status, view.verdict) == (ExperimentStatus.ROLLED_BACK, Verdict.WORSE)
    assert view.report.comparison.num_scored == 40
    assert view.report.comparison.difference == -1
    assert view.report.comparison.difference_interval[1] < 0
    with store.transaction() as session:
        left = session.scalars(
            select(ShardRow.id).where(ShardRow.batch_id == shadow.id, ShardRow.state != "finished")
        ).all()
    assert [claim(store, shard_id) for shard_id in left] == [None]
    assert shadow_of(store, batch_id).status is BatchStatus.CANCELLED
    with store.transaction() as session:
        assert experiments.open_ids(session, limit=10) == []


def test_the_same_model_is_neither_better_nor_worse(store: Store) -> None:
    batch_id = submit(store, 40, shard_size=20)
    shadow = shadow_of(store, batch_id)
    for _ in range(2):
        run(store, shadow.id, lambda i: i % 2 == 0, most=1)
        sweep(store)
        run(store, batch_id, lambda i: i % 2 == 0, most=1)
        sweep(store)
    view = look(store, batch_id)
    assert (view.status, view.verdict) == (ExperimentStatus.ENDED, Verdict.UNDECIDED)
    assert (view.report.comparison.num_lines, view.report.comparison.agreement) == (40, 1)
    assert (view.report.comparison.quality_a, view.report.comparison.quality_b) == (0.5, 0.5)
    assert view.report.comparison.more_lines is not None
    assert (view.report.work_a.output_tokens, view.report.work_b.output_tokens) == (280, 280)
    assert (view.report.work_a.device_seconds, view.report.work_b.device_seconds) == (20, 20)


def test_a_planted_loss_is_rolled_back_within_the_size_said_beforehand(store: Store) -> None:
    """The verdicts' own error rates are in tests/worker/quality; here, rows come and go in between."""
    batch_id = submit(store, 700, shard_size=70)
    shadow, source = shadow_of(store, batch_id), random.Random(1)
    wrong = [{i for i in range(700) if source.random() < share} for share in (0.05, 0.15)]
    planned = look(store, batch_id).num_planned
    for _ in range(10):
        run(store, batch_id, lambda i: i not in wrong[0], most=1)
        run(store, shadow.id, lambda i: i not in wrong[1], most=1)
        sweep(store)
    view = look(store, batch_id)
    assert view.verdict is Verdict.WORSE
    assert view.report.comparison.num_scored < planned < 700


def test_results_are_judged_once_and_in_passes(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.store.experiments.judging.AT_ONCE", 3)
    batch_id = submit(store, 8, shard_size=8)
    run(store, batch_id, always)
    run(store, shadow_of(store, batch_id).id, always)
    seen = []
    for _ in range(4):
        sweep(store)
        seen.append(look(store, batch_id).report.comparison.num_lines)
    assert seen == [3, 6, 8, 8]
    assert look(store, batch_id).status is ExperimentStatus.ENDED


def test_a_cancel_is_carried_over(store: Store) -> None:
    batch_id = submit(store)
    with store.transaction() as session:
        batches.cancel(session, batch_id)
    sweep(store)
    assert look(store, batch_id).status is ExperimentStatus.ENDED
    assert shadow_of(store, batch_id).status is BatchStatus.CANCELLED
    assert look(store, batch_id).report.comparison.num_lines == 0, "cancelled requests show nothing"


def test_a_pause_is_carried_over(store: Store) -> None:
    batch_id = submit(store)
    with store.transaction() as session:
        control.pause(session, batch_id)
    sweep(store)
    assert shadow_of(store, batch_id).paused_at is not None
    with store.transaction() as session:
        control.resume(session, batch_id)
    sweep(store)
    assert shadow_of(store, batch_id).paused_at is None


def test_a_deletion_takes_everything_along(store: Store) -> None:
    batch_id = submit(store)
    shadow = shadow_of(store, batch_id)
    run(store, batch_id, always)
    claimed = held(store, shadow_of_shard(store, shadow.id))
    with store.transaction() as session:
        assert control.remove(session, batch_id) is control.Done.YES
    with store.of_tenant("default").transaction() as session:
        assert experiment_views.get(session, experiments.id_of(batch_id)) is None
    sweep(store)
    with store.transaction() as session:
        shards.release(session, claimed)
    for _ in range(2):
        sweep(store)
    with store.transaction() as session:
        while retention.drop_deleted(session, limit=100):
            pass
    with store.transaction() as session:
        while retention.drop_deleted(session, limit=100):
            pass
        for table in ("batches", "shards", "requests", "results", "experiments", "experiment_lines"):
            assert session.scalar(text(f"SELECT count(*) FROM {table}")) == 0, table


def shadow_of_shard(store: Store, shadow_id: str) -> int:
    with store.transaction() as session:
        found = session.scalar(select(ShardRow.id).where(ShardRow.batch_id == shadow_id).limit(1))
    assert found is not None
    return found


def test_a_reassigned_batch_has_nothing_to_compare_any_more(store: Store) -> None:
    batch_id = submit(store)
    with store.transaction() as session:
        reassigning.rebind(session, batch_id, B)
    sweep(store)
    assert look(store, batch_id).status is ExperimentStatus.ENDED
    assert shadow_of(store, batch_id).status is BatchStatus.CANCELLED


def test_a_failed_request_is_wrong_and_reasoning_is_not_judged(store: Store) -> None:
    thinks = replace(PARAMS, parsing=THINKING)
    batch_id = submit(store, 2, shard_size=2, params=thinks)
    run(store, batch_id, always)
    claimed = held(store, shadow_of_shard(store, shadow_of(store, batch_id).id))
    first, second = claimed.requests
    results = [
        result(first.id, output="<think>1, or rather 0</think>0"),
        result(second.id, outcome=Outcome.FAILED, output="1"),
    ]
    with store.transaction() as session:
        shards.save(session, [Progress(claimed, results, running_tokens=0, is_last=True)], lease=LEASE)
    sweep(store)
    found = look(store, batch_id).report.comparison
    assert (found.quality_a, found.quality_b, found.num_worse) == (1, 0.5, 1)


def test_what_must_not_be_done_twice_is_left_out(store: Store) -> None:
    requests = [
        NewRequest(
            "prompt 0", 10, 3, cache=CacheMode.EXACT, timeout_seconds=9, expected=Expected.from_json("0")
        ),
        NewRequest("prompt 1", 10, 3, tool_loop=LOOP),
        NewRequest("prompt 2", 10, 3, params=EmbeddingParams()),
    ]
    batch_id = submit(store, requests=requests, cache=CacheMode.EXACT, max_failed=0, max_total_tokens=99)
    shadow = shadow_of(store, batch_id)
    assert (shadow.cache, shadow.max_failed, shadow.max_total_tokens) == (CacheMode.OFF, None, None)
    with store.transaction() as session:
        query = "SELECT prompt, cache, timeout_seconds, position FROM requests WHERE batch_id = :id"
        rows = session.execute(text(query), {"id": shadow.id}).all()
    assert [tuple(row) for row in rows] == [("prompt 0", None, None, 0)]
    with pytest.raises(NothingToCompareError):
        submit(store, requests=requests[1:])


def test_a_bisected_or_lost_shard_of_the_other_model_ends_as_any_other(store: Store) -> None:
    """A worker that dies on it leaves the batch alone."""
    batch_id = submit(store, 2, shard_size=2)
    shadow = shadow_of(store, batch_id)
    claimed = held(store, shadow_of_shard(store, shadow.id))
    with store.transaction() as session:
        shards.release(session, claimed)
    again = held(store, claimed.shard_id)
    assert again.fence == claimed.fence + 1
    late = [result(one.id, output="late") for one in claimed.requests]
    with store.transaction() as session:
        progress = [Progress(claimed, late, running_tokens=0, is_last=True)]
        assert shards.save(session, progress, lease=LEASE) == [shards.AfterSave.LOST]
    run(store, batch_id, always)
    with store.transaction() as session:
        assert session.get_one(BatchRow, batch_id).status is BatchStatus.COMPLETED


def save(store: Store, batch_id: str, make: Callable[[int], NewResult]) -> None:
    """Give every request of a batch the result that `make` returns for its id."""
    with store.transaction() as session:
        shard_ids = session.scalars(select(ShardRow.id).where(ShardRow.batch_id == batch_id)).all()
    for shard_id in shard_ids:
        claimed = held(store, shard_id)
        results = [make(one.id) for one in claimed.requests]
        with store.transaction() as session:
            shards.save(session, [Progress(claimed, results, running_tokens=0, is_last=True)], lease=LEASE)
        counting.follow(store, batch_id)


def test_both_models_cost_what_their_work_costs_at_the_prices_of_the_time(store: Store) -> None:
    batch_id = submit(store, 4)
    shadow = shadow_of(store, batch_id)
    run(store, batch_id, always)
    save(
        store,
        shadow.id,
        lambda one: replace(
            result(one), num_output_tokens=5, seconds=DeviceSeconds(decode=0.25, padding=0.05)
        ),
    )
    prices = Prices(device_hour=3600.0, million_input_tokens=1e6, million_output_tokens=2e6)
    dear = Store(settings().database_url, has_pooler=settings().has_pooler, prices=prices)
    sweep(dear)
    dear.close()
    found = look(store, batch_id).report
    assert found.work_a.cost_billionths == 4 * (0.5 + 3 + 2 * 7) * 10**9
    assert found.work_b.cost_billionths == 4 * (0.3 + 3 + 2 * 5) * 10**9
    assert found.work_b.device_seconds == pytest.approx(1.2)
    assert (found.length.a, found.length.b, found.length.interval) == (7, 5, (-2, -2))


def test_a_model_that_fails_more_is_rolled_back_without_any_reference_answer(store: Store) -> None:
    requests = [NewRequest(f"prompt {i}", 10, 3) for i in range(60)]
    batch_id = submit(store, requests=requests, shard_size=20)
    shadow = shadow_of(store, batch_id)
    run(store, batch_id, always)
    save(store, shadow.id, lambda one: result(one, outcome=Outcome.FAILED))
    sweep(store)
    view = look(store, batch_id)
    assert (view.status, view.verdict) == (ExperimentStatus.ROLLED_BACK, Verdict.WORSE)
    assert (view.report.failed.a, view.report.failed.b) == (0, 1)
    assert view.report.comparison.num_scored == 0


def test_an_output_is_valid_if_it_is_whole_and_in_its_format(store: Store) -> None:
    in_json = replace(PARAMS, format=OutputFormat(FormatKind.JSON_OBJECT))
    requests = [NewRequest(f"prompt {i}", 10, 3, params=in_json) for i in range(3)]
    batch_id = submit(store, requests=[*requests, NewRequest("prompt 3", 10, 3)])
    shadow = shadow_of(store, batch_id)
    save(store, batch_id, lambda one: result(one, output="{}"))
    outputs = iter([("{}", FinishReason.LENGTH), *((one, FinishReason.STOP) for one in ("{", "{}", "{"))])

    def next_result(one: int) -> NewResult:
        output, reason = next(outputs)
        return replace(result(one, output=output), finish_reason=reason)

    save(store, shadow.id, next_result)
    sweep(store)
    found = look(store, batch_id).report.valid
    assert found.a == 1
    assert found.b == pytest.approx(1 / 3)
    assert found.interval is not None
    assert found.interval[0] < -2 / 3 < found.interval[1]
