import random
from collections.abc import Sequence
from dataclasses import asdict, fields, replace

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import text

from api.batches.eta import estimate, expected_tokens
from tests.fixtures.batches import held, submit
from tests.fixtures.measured import measured_worker
from worker.contract.states import BatchStatus
from worker.forecasts.calibration import calibrate
from worker.forecasts.forecaster import Forecaster, machine_of
from worker.forecasts.lengths import LearnedLengths
from worker.forecasts.simulation import Machine
from worker.forecasts.work import of_live
from worker.store.batches import batch_views
from worker.store.batches.batch_views import BatchView, ModelPart
from worker.store.database.session import Store
from worker.store.watching.outlook import ForecastOutcome, SeenOutput
from worker.values.step_costs import STEP_COSTS, StepCosts

LIMIT, ROWS = 100, 64
COSTS = StepCosts(0.01, 0.001, 0.0, 0.0, max_rows=ROWS)
# Forecasts that were as good as true.
EXACT = [ForecastOutcome(seconds, seconds) for seconds in (0.5, 1.0, 2.0, 4.0, 8.0, 16.0) * 10]


def knowing(lengths: LearnedLengths, *, machine: Machine | None = None) -> Forecaster:
    return Forecaster(
        tenant="default",
        machine=machine,
        num_workers=1,
        lengths=lengths,
        calibration=calibrate(EXACT),
        live=(),
        unseen=None,
        weights={},
        shard_sizes=(64, 64),
    )


MACHINE = Machine(COSTS, num_rows=ROWS, max_tokens=512)


@pytest.fixture
def running(store: Store) -> BatchView:
    batch_id = submit(store, num_requests=200, shard_size=200, max_tokens=LIMIT)
    held(store, 1)
    with store.transaction() as session:
        found = batch_views.get(session, batch_id)
    assert found is not None
    return found


def draw_lengths(draw: random.Random, count: int) -> list[int]:
    """Lengths of which many are short, and many go on to the limit."""
    return [draw.choice([draw.randint(1, 20), draw.randint(50, 150)]) for _ in range(count)]


def learned(draw: random.Random) -> LearnedLengths:
    batches = ([min(one, LIMIT) for one in draw_lengths(draw, 64)] for _ in range(10))
    return LearnedLengths([[SeenOutput(one, LIMIT, one == LIMIT) for one in batch] for batch in batches])


def after(view: BatchView, lengths: Sequence[int], num_steps: int) -> tuple[BatchView, int]:
    """A batch as so many Steps leave it, a request a row as in the engine; and what is still to come."""
    waiting = [min(one, LIMIT) for one in lengths]
    rows: list[list[int]] = []  # length, and how far it is
    done: list[int] = []
    for _ in range(num_steps):
        while waiting and len(rows) < ROWS:
            rows.append([waiting.pop(0), 0])
        for row in rows:
            row[1] += 1
        done += [length for length, at in rows if length == at]
        rows = [row for row in rows if row[0] > row[1]]
    stands = replace(
        view,
        num_completed=len(done),
        num_cut=sum(one == LIMIT for one in done),
        completed_output_tokens=sum(done),
        output_tokens=sum(done),
        settled_max_tokens=len(done) * LIMIT,
        running_tokens=sum(at for _, at in rows),
    )
    return stands, sum(waiting) + sum(length - at for length, at in rows)


@pytest.mark.parametrize("num_steps", [10, 25, 60, 120])
@pytest.mark.parametrize("has_past", [True, False])
def test_those_that_run_are_not_taken_to_be_as_short_as_those_that_ended(
    running: BatchView, num_steps: int, has_past: bool
) -> None:
    draw = random.Random(num_steps)
    hits, errors = 0, 0.0
    for _ in range(40):
        lengths = learned(draw) if has_past else LearnedLengths([])
        view, truth = after(running, draw_lengths(draw, 200), num_steps)
        stated = of_live(view, lengths, num_rows=ROWS).output_tokens
        hits += stated.low <= truth <= stated.high
        errors += (stated.expected - truth) / truth / 40
    if has_past:
        assert abs(errors) < 0.12
        assert hits >= 33
    else:  # the shape of the curve is not known
        assert abs(errors) < 0.5


def test_the_sequences_of_all_steps_at_once_run(running: BatchView) -> None:
    info = {STEP_COSTS: asdict(COSTS), "max_num_sequences": ROWS, "max_tokens_per_step": 512}
    view, lengths = replace(running, running_tokens=2 * ROWS * 20), learned(random.Random(1))
    works = []
    for told, num_rows in ((info, ROWS), (info | {"steps_at_once": 2}, 2 * ROWS)):
        works.append(knowing(lengths, machine=machine_of([told])).work_of(view))
        assert works[-1] == of_live(view, lengths, num_rows=num_rows)
    assert works[0] != works[1]


def test_what_runs_on_after_the_short_ones_ended_is_still_to_come(running: BatchView) -> None:
    # 62% are done, with 2 tokens each; the mean of those times all is less than what the others already have.
    view = replace(
        running,
        num_completed=124,
        completed_output_tokens=248,
        output_tokens=248,
        settled_max_tokens=124 * LIMIT,
        running_tokens=64 * 50,
    )
    for forecaster in (
        knowing(LearnedLengths([]), machine=MACHINE),
        knowing(learned(random.Random(1)), machine=MACHINE),
        replace(knowing(LearnedLengths([])), machine=None),
    ):
        measured = replace(view, tokens_per_second=1000.0)
        eta = estimate(measured, {None: forecaster})
        assert eta is not None
        assert 0 < eta.low < eta.seconds < eta.high
        assert eta.seconds > 0.5
        assert expected_tokens(measured, {None: forecaster}) > 248 + 64 * 50 + 12


def test_it_never_says_none_while_one_request_is_left(running: BatchView) -> None:
    nearly = {
        "num_completed": 199,
        "completed_output_tokens": 199 * 5,
        "settled_max_tokens": 199 * LIMIT,
        "running_tokens": LIMIT,
    }
    eta = estimate(replace(running, **nearly), {None: knowing(LearnedLengths([]), machine=MACHINE)})
    assert eta is not None
    assert min(eta.seconds, eta.low) > 0


def test_the_estimate_converges(running: BatchView) -> None:
    draw = random.Random(5)
    forecaster = knowing(learned(draw), machine=MACHINE)
    lengths = draw_lengths(draw, 200)
    widths = []
    for num_steps in (20, 60, 100, 140):
        view, truth = after(running, lengths, num_steps)
        eta = estimate(view, {None: forecaster})
        assert eta is not None
        assert eta.low <= eta.seconds <= eta.high
        assert truth
        widths.append(eta.high - eta.low)
    assert widths == sorted(widths, reverse=True)


def test_nothing_to_judge_by_is_no_estimate(running: BatchView) -> None:
    lengths = LearnedLengths([])
    assert estimate(running, {None: knowing(lengths)}) is None
    assert (
        estimate(replace(running, status=BatchStatus.COMPLETED), {None: knowing(lengths, machine=MACHINE)})
        is None
    )
    by_own_rate = estimate(replace(running, tokens_per_second=100.0), {None: knowing(lengths)})
    assert by_own_rate is not None
    assert by_own_rate.low < by_own_rate.seconds < by_own_rate.high


def test_a_mixed_batch_ends_with_the_slower_of_its_models(running: BatchView) -> None:
    names = {field.name for field in fields(ModelPart)}
    whole = {name: getattr(running, name) for name in names}
    sizes = {"a": 20, "b": 180}
    parts = [
        ModelPart(
            **whole | {"model_fingerprint": name, "num_requests": size, "max_output_tokens": size * LIMIT}
        )
        for name, size in sizes.items()
    ]
    mixed = replace(running, is_mixed=True, parts=tuple(parts))
    knows = knowing(LearnedLengths([]), machine=MACHINE)
    forecasters = dict.fromkeys(sizes, knows)
    alone = [estimate(one, forecasters) for one in mixed.by_model()]
    assert alone[0] is not None
    assert alone[1] is not None
    assert alone[0].seconds < alone[1].seconds
    assert estimate(mixed, forecasters) == alone[1]
    tokens = sum(expected_tokens(one, forecasters) for one in mixed.by_model())
    assert abs(expected_tokens(mixed, forecasters) - tokens) <= 1
    # Nothing is known of a model that no worker has run yet.
    assert estimate(mixed, forecasters | {"a": knowing(LearnedLengths([]))}) is None


def test_a_waiting_batch_counts_what_runs_beside_it(client: TestClient, store: Store) -> None:
    measured_worker(store)
    first = submit(store, num_requests=640, shard_size=640, max_tokens=50)
    alone = client.get(f"/v1/batch/{first}").json()
    second = submit(store, num_requests=640, shard_size=640, max_tokens=50)
    beside = client.get(f"/v1/batch/{second}").json()
    assert beside["eta_seconds"] == pytest.approx(2 * alone["eta_seconds"], rel=0.1)
    listed = client.get("/v1/batch").json()["data"]
    assert {one["batch_id"]: one["eta_seconds"] for one in listed}[second] == beside["eta_seconds"]


def test_a_pause_takes_the_forecast_away(client: TestClient, store: Store) -> None:
    measured_worker(store)
    batch_id = client.post("/v1/batch/async", json={"prompts": ["a"]}).json()["batch_id"]
    found = text("SELECT forecast_seconds FROM batches")
    with store.transaction() as session:
        assert session.scalar(found) > 0
    client.post(f"/v1/batch/{batch_id}/pause")
    assert client.get(f"/v1/batch/{batch_id}").json()["eta_seconds"] is None
    with store.transaction() as session:
        assert session.scalar(found) is None
