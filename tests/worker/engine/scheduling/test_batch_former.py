"""The batch former, a policy at a time."""

import subprocess
import sys
from collections.abc import Hashable
from dataclasses import replace

import pytest

from tests.fixtures.clock import Clock
from worker.engine.requests.batch_policy import BatchPolicy
from worker.engine.scheduling.batch_former import BatchFormer, BatchItem


class Bench:
    """A former with a clock of its own."""

    def __init__(self, max_tokens: int = 1000, num_blocks: int = 1000, **policy: object) -> None:
        self.clock = Clock()
        self.policy = replace(BatchPolicy(max_memory_share=1.0), **policy)  # type: ignore[arg-type]
        self.former = BatchFormer(self.policy, max_tokens=max_tokens, num_blocks=num_blocks, clock=self.clock)

    def add(self, *keys: Hashable, num_tokens: int = 10, num_blocks: int = 1, priority: int = 0) -> None:
        for key in keys:
            self.former.add(BatchItem(key, num_tokens, num_blocks, priority))

    def form(self) -> list[Hashable]:
        return [item.key for item in self.former.form()]

    def run(self, seconds: float = 0.0) -> list[Hashable]:
        """Form a batch and end it `seconds` later."""
        keys = self.form()
        self.clock.now += seconds
        for key in keys:
            self.former.finish(key)
        return keys


def test_one_batch_at_a_time() -> None:
    bench = Bench()
    bench.add(1, 2)
    assert bench.form() == [1, 2]
    bench.add(3)
    assert bench.form() == []
    bench.former.finish(1)
    bench.former.finish(1)
    bench.former.finish("unknown")
    assert bench.form() == []
    assert bench.former.wait_seconds is None
    bench.former.finish(2)
    assert bench.former.wait_seconds == 0.0
    assert bench.form() == [3]


def test_fixed_size() -> None:
    bench = Bench(max_items=3, window_seconds=5.0)
    bench.add(1, 2)
    assert bench.form() == []
    bench.add(3, 4)
    assert bench.run() == [1, 2, 3]
    assert bench.run() == []
    bench.clock.now += 5.0
    assert bench.run() == [4]


def test_time_window_counts_from_the_oldest() -> None:
    bench = Bench(window_seconds=2.0)
    bench.add(1)
    bench.clock.now += 1.5
    bench.add(2)
    assert bench.former.wait_seconds == 0.5
    assert bench.run() == []
    bench.clock.now += 0.5
    assert bench.former.wait_seconds == 0.0
    assert bench.run() == [1, 2]
    assert bench.former.wait_seconds is None


def test_no_window_waits_for_nothing() -> None:
    bench = Bench()
    bench.add(1)
    assert bench.run() == [1]


def test_arrivals_of_higher_priority_do_not_move_the_window() -> None:
    bench = Bench(window_seconds=2.0)
    bench.add(1)
    for key in range(2, 5):
        bench.clock.now += 0.9
        bench.add(key, priority=key)
    assert bench.run() == [4, 3, 2, 1]


def test_token_budget() -> None:
    bench = Bench(max_tokens=25, window_seconds=9.0)
    bench.add(1, 2)
    assert bench.form() == []  # there is room for more
    bench.add(3)
    assert bench.run() == [1, 2]
    bench.clock.now += 9.0
    assert bench.run() == [3]


def test_memory_limit() -> None:
    bench = Bench(num_blocks=20, max_memory_share=0.5)
    bench.add(1, 2, 3, num_blocks=4)
    assert bench.run() == [1, 2]
    assert bench.run() == [3]


def test_an_item_over_the_limits_goes_alone_and_in_turn() -> None:
    bench = Bench(max_tokens=25, num_blocks=10)
    bench.add(1)
    bench.add(2, num_tokens=100)
    bench.add(3)
    bench.add(4, num_blocks=11)
    assert [bench.run() for _ in range(5)] == [[1], [2], [3], [4], []]


def test_priority_is_worth_so_much_waiting() -> None:
    bench = Bench(max_items=1, priority_seconds=10.0)
    bench.add("old")
    bench.clock.now += 19.0
    bench.add("two levels", priority=2)
    bench.add("one level", priority=1)
    bench.clock.now += 2.0
    bench.add("two levels, too late", priority=2)
    order = ["two levels", "old", "two levels, too late", "one level"]
    assert [bench.run() for _ in order] == [[key] for key in order]


def test_without_priority_seconds_no_level_counts() -> None:
    bench = Bench(priority_seconds=0.0)
    bench.add(1)
    bench.add(2, priority=5)
    assert bench.run() == [1, 2]


def test_length_buckets_hold_similar_lengths() -> None:
    bench = Bench(length_borders=(10, 100))
    for key, length in enumerate([5, 50, 10, 101, 100, 11]):
        bench.add(key, num_tokens=length)
    assert [bench.run() for _ in range(4)] == [[0, 2], [1, 4, 5], [3], []]


def test_a_full_bucket_does_not_wait_and_an_expired_item_does_not_either() -> None:
    bench = Bench(length_borders=(10,), max_items=2, window_seconds=3.0)
    bench.add("short")
    bench.clock.now += 1.0
    bench.add("long 1", "long 2", "long 3", "long 4", num_tokens=50)
    assert bench.run(seconds=2.0) == ["long 1", "long 2"]
    assert bench.run() == ["short"]  # its time is up, though a bucket is full
    assert bench.run() == ["long 3", "long 4"]


def test_adapts_to_a_latency_target() -> None:
    bench = Bench(max_tokens=100_000, latency_target_seconds=2.0)
    key, size = 0, 0
    for _ in range(20):
        for _ in range(2000):
            bench.add(key, num_tokens=10)
            key += 1
        batch = bench.form()
        size = 10 * len(batch)
        bench.clock.now += 0.5 + size / 1000  # seconds: a fixed part and one for each token
        for one in batch:
            bench.former.finish(one)
    assert size == pytest.approx(1500, rel=0.05)
    # A small batch that is quick does not shrink the next one, and a stalled one halves it at most.
    limit = bench.former.max_tokens
    small = Bench(max_tokens=1000, latency_target_seconds=2.0)
    small.add(1)
    small.run(seconds=1.9)
    assert small.former.max_tokens == 1000
    for one in bench.form():
        bench.clock.now += 10
        bench.former.finish(one)
    assert bench.former.max_tokens >= limit // 2 - 10


def test_adapting_counts_what_the_batch_held() -> None:
    bench = Bench(max_tokens=50, latency_target_seconds=2.0)
    bench.add(1)
    bench.add(2, num_tokens=90)  # does not fit the first batch
    assert bench.run(seconds=4.0) == [1]
    assert bench.former.max_tokens == 5


def test_the_limit_never_falls_below_a_token_nor_rises_over_the_most() -> None:
    bench = Bench(max_tokens=64, latency_target_seconds=1.0)
    for key in range(20):
        bench.add(key, num_tokens=1)
        assert bench.run(seconds=1000.0) == [key]
    assert bench.former.max_tokens == 1
    for key in range(20):
        bench.add(key, num_tokens=100)
        assert bench.run() == [key]
    assert bench.former.max_tokens == 64


def test_removed_items_are_gone_and_their_keys_free() -> None:
    bench = Bench(max_items=2, window_seconds=5.0)
    bench.add(1, 2)
    assert bench.former.remove(1)
    assert not bench.former.remove(1)
    assert len(bench.former) == 1
    assert bench.form() == []  # one is left: not full
    bench.add(3, 1)
    assert bench.form() == [2, 3]
    assert not bench.former.remove(2)
    for key in (1, 2):
        with pytest.raises(ValueError, match="already queued"):
            bench.add(key)


@pytest.mark.parametrize("module", ["scheduling.batch_former", "requests.batch_policy"])
def test_needs_no_torch(module: str) -> None:
    """A former that reaches for tensors can no longer be tested or reasoned about on its own."""
    code = f"import sys, worker.engine.{module}; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
