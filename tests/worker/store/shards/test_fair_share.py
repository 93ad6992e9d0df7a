from dataclasses import replace
from datetime import timedelta

import pytest

from tests.fixtures.batches import LEASE, held, result, submit
from worker.store.batches import batch_views
from worker.store.database.session import Store
from worker.store.shards import fair_share, shards, tickets
from worker.store.shards.fair_share import SAVED_TOKENS, ChosenShard
from worker.store.shards.shards import Progress
from worker.store.tenants import tenants

SOON = timedelta(seconds=60)
BIG = int(SAVED_TOKENS) // 4  # a request's output: a tenant's savings are used up by four


def issue(store: Store, window: int = 4) -> int:
    with store.transaction() as session:
        return len(tickets.issue_shards(session, window=window, reissue_after=SOON))


def work(store: Store, num_shards: int, *, window: int = 4) -> list[str]:
    """Run shards one after the other, as one worker would; return whose they were."""
    order: list[str] = []
    for _ in range(num_shards):
        issue(store, window)
        with store.transaction() as session:
            chosen = fair_share.first(session)
        assert chosen is not None
        claimed = held(store, chosen.shard_id)
        issue(store, window)
        order.append("ours" if owner(store, claimed.batch_id, "ours") else "theirs")
        results = [replace(result(r.id), num_output_tokens=r.max_tokens) for r in claimed.requests]
        with store.transaction() as session:
            shards.save(session, [Progress(claimed, results, running_tokens=0, is_last=True)], lease=LEASE)
    return order


def owner(store: Store, batch_id: str, tenant: str) -> bool:
    with store.of_tenant(tenant).transaction() as session:
        return batch_views.get(session, batch_id) is not None


def test_a_backlog_leaves_room_for_others(store: Store) -> None:
    submit(store.of_tenant("theirs"), num_requests=50, shard_size=1, max_tokens=BIG)
    assert set(work(store, 6)) == {"theirs"}
    submit(store.of_tenant("ours"), num_requests=4, shard_size=1, max_tokens=10)
    assert work(store, 5) == ["ours"] * 4 + ["theirs"], "a small batch overtakes tickets that are out already"


def test_two_backlogs_take_turns_once_savings_are_used_up(store: Store) -> None:
    submit(store.of_tenant("theirs"), num_requests=40, shard_size=1, max_tokens=BIG)
    work(store, 6)
    submit(store.of_tenant("ours"), num_requests=60, shard_size=1, max_tokens=BIG)
    order = work(store, 24)
    assert order[:4] == ["ours"] * 4
    assert 5 <= order[12:].count("ours") <= 7, "in the long run both get the same"


def test_weights_divide_the_workers(store: Store) -> None:
    with store.transaction() as session:
        tenants.create(session, "ours")
        tenants.change(session, "ours", {"weight": 3})
    for tenant in ("ours", "theirs"):
        submit(store.of_tenant(tenant), num_requests=60, shard_size=1, max_tokens=BIG)
    assert 14 <= work(store, 20).count("ours") <= 16


def test_nobody_saves_more_than_a_little(store: Store) -> None:
    submit(store.of_tenant("ours"), num_requests=1, shard_size=1, max_tokens=BIG)
    submit(store.of_tenant("theirs"), num_requests=60, shard_size=1, max_tokens=BIG)
    work(store, 20)
    submit(store.of_tenant("ours"), num_requests=60, shard_size=1, max_tokens=BIG)
    assert 7 <= work(store, 12).count("ours") <= 9, "half of the turns, and what four requests cost"


def test_each_tenant_has_a_window(store: Store) -> None:
    submit(store.of_tenant("theirs"), num_requests=10, shard_size=1)
    assert (issue(store), issue(store)) == (4, 0)
    submit(store.of_tenant("ours"), num_requests=10, shard_size=1)
    assert (issue(store), issue(store)) == (4, 0)


@pytest.mark.parametrize("tried", [(), (1,), (1, 2)])
def test_what_was_tried_is_not_tried_again(store: Store, tried: tuple[int, ...]) -> None:
    submit(store, num_requests=2, shard_size=1)
    issue(store)
    with store.transaction() as session:
        chosen = fair_share.first(session, but=tried)
    assert chosen == (ChosenShard(len(tried) + 1, is_suspect=False) if len(tried) < 2 else None)


def next_ones(store: Store, count: int, *, fewest: bool | None = None) -> list[int]:
    """Return the shards that workers would claim one after the other, each run for ever."""
    found = []
    for number in range(count):
        issue(store)
        with store.transaction() as session:
            chosen = fair_share.first(session, fewest=number % 2 == 0 if fewest is None else fewest)
        assert chosen is not None
        held(store, chosen.shard_id)
        found.append(chosen.shard_id)
    return found


@pytest.mark.parametrize("fewest", [False, True])
def test_a_higher_priority_overtakes_tickets_that_are_out(store: Store, *, fewest: bool) -> None:
    submit(store, num_requests=10, shard_size=1, completion_window=timedelta(hours=1))
    assert next_ones(store, 2) == [1, 2]
    submit(store, num_requests=3, shard_size=1, priority=5)
    assert next_ones(store, 4, fewest=fewest) == [11, 12, 13, 3]


def test_a_small_batch_overtakes_a_large_one(store: Store) -> None:
    submit(store, num_requests=50, shard_size=1, completion_window=timedelta(hours=1))
    assert next_ones(store, 4) == [1, 2, 3, 4]
    submit(store, num_requests=2, shard_size=1, completion_window=timedelta(hours=2))
    assert next_ones(store, 6) == [51, 5, 52, 6, 7, 8], "every other turn is of what came first"


def test_small_batches_leave_a_large_one_half(store: Store) -> None:
    submit(store, num_requests=50, shard_size=1)
    for _ in range(50):
        submit(store, num_requests=1, shard_size=1)
    assert sum(shard_id <= 50 for shard_id in next_ones(store, 40)) == 20 + 1


def test_the_priority_of_one_tenant_takes_nothing_from_another(store: Store) -> None:
    for tenant in ("ours", "theirs"):
        submit(store.of_tenant(tenant), num_requests=60, shard_size=1, max_tokens=BIG)
    order = []
    for _ in range(12):
        submit(store.of_tenant("ours"), num_requests=2, shard_size=1, max_tokens=BIG, priority=100)
        order += work(store, 2)
    assert 10 <= order.count("ours") <= 14
