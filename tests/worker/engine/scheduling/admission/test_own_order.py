"""One group's own work: priority decides, batches of one priority share, other groups lose nothing by it."""

from collections.abc import Callable

import pytest

from tests.worker.engine.scheduling.admission.test_fair_shares import ROWS, Bench
from worker.engine.requests.config import ADMISSIONS
from worker.engine.requests.share import Share
from worker.engine.sequences.sequence import Sequence, SequenceState

LOW, HIGH = Share("one", batch="low"), Share("one", priority=5, batch="high")
LARGE, SMALL, THIRD = (Share("one", batch=name) for name in ("large", "small", "third"))


def num_running(bench: Bench, share: Share) -> int:
    return sum(one.share == share for one in bench.scheduler.running)


def full(
    share: Share, policy: str = "length-aware", *, max_tokens: int = 200
) -> tuple[Bench, list[Sequence]]:
    """Return a bench whose rows are all taken, while twice as many wait."""
    bench = Bench(policy)
    added = bench.add(share, 3 * ROWS, max_tokens=max_tokens)
    while num_running(bench, share) < ROWS:
        bench.step()
    return bench, added


@pytest.mark.parametrize("policy", ADMISSIONS)
def test_a_higher_priority_takes_the_place_of_a_lower_one(policy: str) -> None:
    bench, low = full(LOW, policy)
    high = bench.add(HIGH, ROWS, max_tokens=40)
    bench.step()
    bench.step()  # a prompt that all of them begin with is computed once
    assert num_running(bench, HIGH) == ROWS - 1, "the oldest goes on"
    assert low[0].state is SequenceState.RUNNING
    alone = Bench(policy)
    assert bench.steps_to_end(high) <= 2 * alone.steps_to_end(alone.add(HIGH, ROWS, max_tokens=40))
    assert sum(one.state is SequenceState.FINISHED for one in low) == 0
    bench.steps_to_end(low)
    assert [one.num_output_tokens for one in low] == [200] * len(low)
    assert bench.scheduler.stats.preemptions == ROWS - 1, "each gave way once"
    assert bench.scheduler.block_pool.num_free_blocks == 512


def test_what_waits_goes_by_priority() -> None:
    bench, _ = full(HIGH, max_tokens=40)
    low = bench.add(LOW, ROWS)
    higher = bench.add(Share("one", priority=3, batch="between"), ROWS)
    bench.steps_to_end(higher)
    assert all(one.state is SequenceState.WAITING for one in low[1:])


@pytest.mark.parametrize("policy", ADMISSIONS)
@pytest.mark.parametrize("count", [1, 2, 5])
def test_a_small_batch_does_not_wait_for_a_large_one(policy: str, count: int) -> None:
    alone = Bench(policy)
    steps_alone = alone.steps_to_end(alone.add(SMALL, count))
    bench = Bench(policy)
    bench.add(LARGE, 1000 * count, max_tokens=400)
    for _ in range(50):
        bench.step()
    assert bench.steps_to_end(bench.add(SMALL, count)) <= 2 * steps_alone + 2


def test_a_batch_with_one_long_request_gets_a_row_too() -> None:
    bench, _ = full(LARGE, max_tokens=20)
    [long] = bench.add(SMALL, 1, max_tokens=600)
    bench.step()
    bench.step()
    assert long.state is SequenceState.RUNNING


def test_two_large_batches_share_and_do_not_push_each_other_out() -> None:
    bench, _ = full(LARGE)
    bench.add(SMALL, 4 * ROWS, max_tokens=200)
    bench.step()
    bench.step()
    assert num_running(bench, LARGE) == num_running(bench, SMALL) == ROWS // 2
    preemptions = bench.scheduler.stats.preemptions
    for _ in range(600):
        bench.step()
    assert abs(num_running(bench, LARGE) - num_running(bench, SMALL)) <= 2
    assert bench.scheduler.stats.preemptions == preemptions


def test_priority_takes_nothing_from_another_group() -> None:
    bench = Bench(saved_tokens=400)
    bench.add(Share("two"), 400)
    bench.add(Share("one", priority=-100), 100)
    while bench.num_tokens.total() < 3_000:
        bench.step()
    bench.num_tokens.clear()
    for number in range(60):
        bench.add(Share("one", priority=100, batch=number), 4)
        for _ in range(4):
            bench.step()
    assert 0.75 < bench.num_tokens["one"] / bench.num_tokens["two"] < 1.33


def test_a_group_that_is_not_due_exchanges_its_own() -> None:
    bench = Bench("fifo", saved_tokens=400)
    low = bench.add(LOW, 200, max_tokens=400)
    for _ in range(10):
        bench.step()
    bench.add(Share("two"), 200, max_tokens=400)
    for _ in range(3):
        bench.step()
    held = num_running(bench, Share("two"))
    assert 0 < held < ROWS, "both have some, and more of both waits"
    [high] = bench.add(HIGH, 1)
    bench.step()
    bench.step()
    assert high.state is SequenceState.RUNNING
    assert num_running(bench, Share("two")) == held
    assert low[0].state is SequenceState.RUNNING


def test_batches_that_have_ended_are_forgotten() -> None:
    bench = Bench()
    bench.add(LARGE, 50, max_tokens=1000)
    for number in range(20):
        bench.steps_to_end(bench.add(Share("one", priority=number % 3, batch=number), 2, max_tokens=2))
    [group] = bench.scheduler._admission._groups.values()
    assert len(group.order._batches) == 1


def by_tokens(num_tokens: int) -> float:
    """Return what a Step takes on a device that computes one token after the other."""
    return 1.0 + num_tokens


def time_beside(share: Share, other: Share, seconds_of: Callable[[int], float]) -> tuple[float, float]:
    """Return how long one request takes alone, and while another batch has every other row."""
    alone = Bench()
    quiet = alone.seconds_to_end(alone.add(share, 1, max_tokens=200), seconds_of)
    bench = Bench()
    bench.add(other, 400, max_tokens=400)
    bench.seconds_to_end(bench.add(Share("third", batch=3), 1, max_tokens=2), seconds_of)
    return quiet, bench.seconds_to_end(bench.add(share, 1, max_tokens=200), seconds_of)


@pytest.mark.parametrize("other", [LARGE, LOW, Share("another")])
def test_few_beside_many_get_short_steps_in_between(other: Share) -> None:
    quiet, beside = time_beside(HIGH, other, by_tokens)
    assert beside < 3.3 * quiet, "a Step of all takes five times as long as one of its own"


def test_no_step_is_for_few_where_that_would_not_be_shorter() -> None:
    quiet, beside = time_beside(SMALL, LARGE, lambda _: 1.0)
    assert beside <= quiet + 5


def test_steps_for_few_take_at_most_a_quarter_of_the_time() -> None:
    bench = Bench()
    bench.add(LARGE, 400, max_tokens=400)
    for number in range(10):
        bench.seconds_to_end(bench.add(Share("one", batch=number), 1, max_tokens=60), by_tokens)
    assert bench.num_tokens["one"] / (bench.seconds / by_tokens(ROWS)) > 0.75 * ROWS


def test_batches_that_are_alike_get_no_steps_of_their_own() -> None:
    bench = Bench()
    for number in range(ROWS):
        bench.add(Share("one", batch=number), 4)
    while bench.scheduler.num_waiting:
        bench.step()
        assert not bench.scheduler._admission.few()


def test_what_is_left_of_a_lower_priority_gets_no_steps_of_its_own() -> None:
    bench, _ = full(LOW)
    high = bench.add(HIGH, 2 * ROWS, max_tokens=60)
    while high[-1].state is SequenceState.WAITING:
        bench.step()
        assert not bench.scheduler._admission.few()
    assert num_running(bench, LOW) == 1
