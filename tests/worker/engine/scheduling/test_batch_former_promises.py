"""The batch former by its promises: nothing lost, nothing twice, order, budgets, bounded waits."""

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fixtures.clock import Clock
from worker.engine.requests.batch_policy import BatchPolicy
from worker.engine.scheduling.batch_former import BatchFormer, BatchItem

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


@settings(max_examples=300)
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


@settings(max_examples=60)
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
