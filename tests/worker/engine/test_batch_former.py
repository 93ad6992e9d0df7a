"""The batch former by its promises: nothing lost, nothing twice, order, budgets, bounded waits."""

import subprocess
import sys
from collections.abc import Hashable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.engine.batch_former import BatchFormer, BatchItem
from worker.engine.batch_policy import POLICIES, BatchPolicy, named_policy
from worker.engine.errors import ConfigError


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


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
        with pytest.raises(ValueError, match="already here"):
            bench.add(key)


policies = st.builds(
    BatchPolicy,
    max_items=st.none() | st.integers(1, 5),
    max_tokens=st.none() | st.integers(1, 60),
    max_memory_share=st.sampled_from([0.2, 0.5, 1.0]),
    window_seconds=st.sampled_from([0.0, 1.0, 3.0]),
    latency_target_seconds=st.none() | st.sampled_from([0.5, 2.0]),
    length_borders=st.sampled_from([(), (10,), (5, 20)]),
    priority_seconds=st.sampled_from([0.0, 2.0]),
)
actions = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 30), st.integers(1, 12), st.integers(0, 3)),
        st.tuples(st.just("wait"), st.sampled_from([0.1, 0.5, 1.0, 2.5])),
        st.tuples(st.just("form")),
        st.tuples(st.just("end"), st.integers(0, 5)),
        st.tuples(st.just("remove"), st.integers(0, 40)),
    ),
    max_size=80,
)


class Model:
    """What a former should do, worked out the slow way."""

    def __init__(self, policy: BatchPolicy) -> None:
        self.policy = policy
        self.clock = Clock()
        self.former = BatchFormer(policy, max_tokens=40, num_blocks=30, clock=self.clock)
        self.queued: dict[int, tuple[float, BatchItem]] = {}  # by key: when, what
        self.running: list[int] = []
        self.gone: set[int] = set()
        self.num_keys = 0

    def add(self, num_tokens: int, num_blocks: int, priority: int) -> None:
        item = BatchItem(self.num_keys, num_tokens, num_blocks, priority)
        self.former.add(item)
        self.queued[self.num_keys] = (self.clock.now, item)
        self.num_keys += 1

    def wait(self, seconds: float) -> None:
        self.clock.now += seconds

    def remove(self, key: int) -> None:
        assert self.former.remove(key) == (key in self.queued)
        if self.queued.pop(key, None) is not None:
            self.gone.add(key)

    def end(self, index: int) -> None:
        if self.running:
            key = self.running.pop(index % len(self.running))
            self.former.finish(key)
            self.gone.add(key)

    def form(self) -> None:
        limit, wait = self.former.max_tokens, self.former.wait_seconds
        keys = [item.key for item in self.former.form()]
        assert bool(keys) == (wait == 0.0)
        if keys:
            self._check(keys, limit)
            for key in keys:
                del self.queued[key]
            self.running.extend(keys)
        else:
            assert self.running or not self._is_expired(), "held back though its time is up"

    def _check(self, keys: list, limit: int) -> None:
        assert not self.running, "two batches at once"
        assert set(keys) <= set(self.queued), "lost, removed or given out twice"
        items = [self.queued[key][1] for key in keys]
        if len(keys) > 1:
            assert len(keys) <= (self.policy.max_items or len(keys))
            assert sum(item.num_tokens for item in items) <= limit <= (self.policy.max_tokens or 40)
            assert sum(item.num_blocks for item in items) <= int(30 * self.policy.max_memory_share)
        alike = [key for key in self.queued if self._bucket(key) == self._bucket(keys[0])]
        assert keys == sorted(alike, key=self._place)[: len(keys)], "passed by one behind it, or not alike"
        if self._is_expired():
            assert keys[0] == min(self.queued, key=self._place), "the first of all was left behind"

    def _is_expired(self) -> bool:
        return any(added + self.policy.window_seconds <= self.clock.now for added, _ in self.queued.values())

    def _place(self, key: int) -> tuple[float, int]:
        added, item = self.queued[key]
        return added - item.priority * self.policy.priority_seconds, key

    def _bucket(self, key: int) -> int:
        return sum(self.queued[key][1].num_tokens > border for border in self.policy.length_borders)


@settings(max_examples=300, deadline=None)
@given(policy=policies, script=actions)
def test_promises(policy: BatchPolicy, script: list[tuple]) -> None:
    model = Model(policy)
    for action, *values in script:
        getattr(model, action)(*values)
        assert len(model.former) == len(model.queued)
    for _ in range(10 * model.num_keys + 10):
        model.end(0)
        model.wait(model.former.wait_seconds or 0.0)
        model.form()
    assert model.gone == set(range(model.num_keys))
    assert model.former.wait_seconds is None


@settings(max_examples=60, deadline=None)
@given(
    policy=policies,
    rivals=st.lists(st.tuples(st.integers(1, 30), st.integers(0, 3)), min_size=1, max_size=4),
)
def test_no_item_starves_under_a_stream_of_better_ones(
    policy: BatchPolicy, rivals: list[tuple[int, int]]
) -> None:
    clock = Clock()
    former = BatchFormer(policy, max_tokens=40, num_blocks=30, clock=clock)
    former.add(BatchItem("patient", 7, 1))
    came_at, ahead, key = clock.now, 0, 0
    batches = 0
    while True:
        # A batch takes a second; meanwhile more arrives than it held.
        for num_tokens, priority in rivals * 5:
            former.add(BatchItem(key, num_tokens, 1, priority))
            ahead += clock.now - priority * policy.priority_seconds < came_at
            key += 1
        batch = [item.key for item in former.form()]
        clock.now += 1.0
        batches += clock.now - came_at > policy.window_seconds
        if "patient" in batch:
            break
        for one in batch:
            former.finish(one)
        # Only what came within its rivals' levels of waiting goes ahead, and each batch takes the first.
        assert batches <= ahead + 1


def test_policies_are_named() -> None:
    assert set(POLICIES) == {
        "fixed-size",
        "time-window",
        "adaptive",
        "priority",
        "length-buckets",
        "token-budget",
        "memory-limit",
    }
    assert named_policy("adaptive").latency_target_seconds is not None
    with pytest.raises(ConfigError, match="'best' is none of fixed-size, time-window"):
        named_policy("best")


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_items": 0},
        {"max_tokens": 0},
        {"max_memory_share": 0.0},
        {"max_memory_share": 1.1},
        {"window_seconds": -1.0},
        {"window_seconds": float("inf")},
        {"latency_target_seconds": 0.0},
        {"latency_target_seconds": float("nan")},
        {"length_borders": (5, 5)},
        {"length_borders": (0,)},
        {"length_borders": (9, 5)},
        {"priority_seconds": -0.1},
    ],
    ids=str,
)
def test_policies_name_the_field(wrong: dict) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        BatchPolicy(**wrong)


@pytest.mark.parametrize("module", ["batch_former", "batch_policy"])
def test_needs_no_torch(module: str) -> None:
    """A former that reaches for tensors can no longer be tested or reasoned about on its own."""
    code = f"import sys, worker.engine.{module}; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
