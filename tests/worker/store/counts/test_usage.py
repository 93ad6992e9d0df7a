from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import text

from tests.fixtures.batches import LEASE, held, result, run_to_the_end, submit
from worker.contract.distributions import BOUNDS, Distribution, distributions, observed
from worker.contract.prices import Prices
from worker.contract.states import Lane
from worker.contract.usage import Latency
from worker.settings import settings
from worker.store.batches import batch_views, batches
from worker.store.counts import usage
from worker.store.database.session import Store
from worker.store.shards import control, shards
from worker.store.shards.shards import Claim, Progress
from worker.values.outcomes import Outcome
from worker.values.results import DeviceSeconds

TODAY = datetime.now(UTC).date()


def total(store: Store) -> dict[str, float]:
    with store.transaction() as session:
        return dict(usage.measured(session, minutes=1).total)


def num_rows(store: Store) -> int:
    with store.transaction() as session:
        return int(session.scalar(text("SELECT count(*) FROM usage")) or 0)


def add(store: Store, tenant: str, **readings: float) -> None:
    with store.transaction() as session:
        usage.add(session, tenant, readings)


def age(store: Store, by: timedelta) -> None:
    with store.transaction() as session:
        session.execute(text("UPDATE usage SET minute = minute - :by"), {"by": by})


def save(store: Store, claimed: Claim, *, seconds: float = 0.0, outcome: Outcome = Outcome.COMPLETED) -> None:
    done = [
        replace(result(one.id, outcome=outcome), seconds=DeviceSeconds(decode=seconds))
        for one in claimed.requests
    ]
    with store.transaction() as session:
        shards.save(session, [Progress(claimed, done, running_tokens=0, is_last=True)], lease=LEASE)


def test_folding_changes_no_sum_of_any_tenant(store: Store) -> None:
    for _ in range(3):
        add(store, "ours", output_tokens=7, decode_seconds=0.1)
        add(store, "theirs", output_tokens=1)
    with store.transaction() as session:
        usage.fold(session)
    assert num_rows(store) == 6, "the present minute has not ended"
    age(store, timedelta(minutes=2))
    with store.transaction() as session:
        usage.fold(session)
    assert num_rows(store) == 2
    age(store, timedelta(hours=3))
    add(store, "ours", output_tokens=1)
    with store.transaction() as session:
        usage.fold(session)
        found = usage.by_tenant(session)
        ours = usage.by_tenant(session, first=TODAY - timedelta(days=1), last=TODAY)["ours"]
    assert num_rows(store) == 3
    assert found == {"ours": {"output_tokens": 22, "decode_seconds": 0.3}, "theirs": {"output_tokens": 3}}
    assert ours == found["ours"]


def test_what_is_being_folded_waits_for_nobody(store: Store) -> None:
    for _ in range(3):
        add(store, "ours", output_tokens=1)
    age(store, timedelta(minutes=2))
    with store.transaction() as first:
        usage.fold(first)
        with store.transaction() as second:
            usage.fold(second)
        add(store, "ours", output_tokens=1)
    assert total(store) == {"output_tokens": 4}


def test_a_tenant_sees_its_own_usage_by_day(store: Store) -> None:
    add(store, "ours", output_tokens=1)
    age(store, timedelta(days=2))
    add(store, "ours", output_tokens=2)
    add(store, "theirs", output_tokens=4)
    with store.of_tenant("ours").transaction() as session:
        found = usage.by_day(session, first=TODAY - timedelta(days=3), last=TODAY)
        of_today = usage.by_day(session, first=TODAY, last=TODAY)
    assert found == {TODAY - timedelta(days=2): {"output_tokens": 1}, TODAY: {"output_tokens": 2}}
    assert of_today == {TODAY: {"output_tokens": 2}}


def test_every_result_is_priced_as_it_is_saved_and_never_again(store: Store) -> None:
    submit(store, num_requests=4)
    dear = Store(
        settings().database_url,
        has_pooler=settings().has_pooler,
        prices=Prices(device_hour=3600.0, million_output_tokens=1e6),
    )
    save(dear, held(store, 1), seconds=0.25)
    dear.close()
    with store.transaction() as session:
        (before,) = batch_views.page(session, after=None, limit=1)
    # Two requests of a quarter second and 7 tokens each, at 1 for a second and 1 for a token.
    assert before.cost_billionths == 14_500_000_000
    cheap = Store(
        settings().database_url, has_pooler=settings().has_pooler, prices=Prices(million_input_tokens=0.5)
    )
    save(cheap, held(store, 2), seconds=0.25)
    cheap.close()
    with store.transaction() as session:
        (after,) = batch_views.page(session, after=None, limit=1)
    assert after.cost_billionths == before.cost_billionths + 3_000
    found = total(store)
    assert found["cost_billionths"] == after.cost_billionths
    assert (found["requests_completed"], found["input_tokens"], found["output_tokens"]) == (4, 12, 28)
    assert (found["cached_tokens"], found["decode_seconds"]) == (4, 1.0)


def test_usage_outlives_its_batch(store: Store) -> None:
    batch_id = submit(store, num_requests=2)
    run_to_the_end(store, held(store, 1))
    before = total(store)
    assert before["batches_ended/batch/completed"] == 1
    with store.transaction() as session:
        control.remove(session, batch_id)
    assert total(store) == before


def test_every_end_is_counted_by_lane_and_status(store: Store) -> None:
    submit(store, num_requests=2, lane=Lane.INTERACTIVE)
    run_to_the_end(store, held(store, 1))
    batch_id = submit(store)
    with store.transaction() as session:
        batches.cancel(session, batch_id)
    found = total(store)
    assert found["batches_ended/interactive/completed"] == 1
    assert found["batches_ended/batch/cancelled"] == 1
    assert (found["requests_completed"], found["requests_cancelled"]) == (2, 4)


@pytest.mark.parametrize(
    ("lane", "priority", "label"),
    [(Lane.BATCH, -5, "low"), (Lane.BATCH, 0, "normal"), (Lane.INTERACTIVE, 0, "normal")],
)
def test_latencies_are_told_by_lane_and_priority(store: Store, lane: Lane, priority: int, label: str) -> None:
    submit(store, num_requests=2, lane=lane, priority=priority)
    claimed = held(store, 1)
    with store.transaction() as session:  # accepted 40 s ago, claimed 4 s ago, by the clock of `now()`
        session.execute(text("UPDATE batches SET created_at = now() - interval '40 s'"))
        session.execute(text("UPDATE shards SET claimed_at = now() - interval '4 s'"))
        done = [result(one.id) for one in claimed.requests]
        shards.save(session, [Progress(claimed, done, running_tokens=0, is_last=True)], lease=LEASE)
    found = total(store)
    key = f"{lane}/{label}"
    assert found[f"total/{key}/60"] == 2
    assert found[f"total/{key}/sum"] == pytest.approx(80)
    assert found[f"claimed/{key}/5"] == 2
    assert found[f"claimed/{key}/sum"] == pytest.approx(8)
    assert not any(name.startswith("first_token") for name in found), "no engine has run it"


def test_a_cancelled_request_has_no_latency(store: Store) -> None:
    submit(store, num_requests=2)
    save(store, held(store, 1), outcome=Outcome.CANCELLED)
    assert not any(name.startswith("total/") for name in total(store))


def test_a_bound_belongs_to_its_own_bucket(store: Store) -> None:
    submit(store, num_requests=2)
    claimed = held(store, 1)
    with store.transaction() as session:
        session.execute(text("UPDATE batches SET created_at = now() - interval '10 s'"))
        done = [result(one.id) for one in claimed.requests]
        shards.save(session, [Progress(claimed, done, running_tokens=0, is_last=True)], lease=LEASE)
    assert total(store)["total/batch/normal/10"] == 2
    assert observed("total", ("batch", "normal"), 10.0) == {
        "total/batch/normal/10": 1,
        "total/batch/normal/sum": 10.0,
    }


def test_quantiles_come_from_the_buckets() -> None:
    readings: dict[str, float] = {}
    for seconds in [0.2] * 50 + [0.9] * 45 + [4.0] * 4 + [500_000.0]:
        for name, value in observed(Latency.QUEUE, ("batch", "normal"), seconds).items():
            readings[name] = readings.get(name, 0.0) + value
    (found,) = distributions(readings, Latency.QUEUE).values()
    assert found.quantile(0.5) == pytest.approx(0.25)
    assert found.quantile(0.95) == pytest.approx(1.0)
    assert found.quantile(0.99) == pytest.approx(5.0)
    assert found.quantile(1.0) == BOUNDS[-1]
    assert found.count == 100
    assert Distribution.merged([found, found]).count == 200
    assert Distribution.merged([]).quantile(0.5) is None
