import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from worker.engine.requests.errors import IntegrityError, OutOfBlocksError
from worker.engine.scheduling.block_pool import BlockPool
from worker.engine.scheduling.prefix_cache import PrefixCache, extend_hashes


class PoolMachine(RuleBasedStateMachine):
    """Takes, shares, offers and releases at random; the books must agree after each."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(12, PrefixCache())
        self.tables: list[list[int]] = []
        self.num_offered = 0

    @rule(count=st.integers(0, 5))
    def allocate(self, count: int) -> None:
        if count <= self.pool.num_free_blocks:
            self.tables.append(self.pool.allocate(count))
        else:
            with pytest.raises(OutOfBlocksError):
                self.pool.allocate(count)

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        table = data.draw(st.sampled_from(self.tables))
        self.pool.share(table)
        self.tables.append(list(table))

    @precondition(lambda self: any(self.tables))
    @rule(data=st.data())
    def offer(self, data: st.DataObject) -> None:
        table = data.draw(st.sampled_from([table for table in self.tables if table]))
        block_id = data.draw(st.sampled_from(table))
        if self.pool.is_free(block_id) or block_id in self.pool._prefix_cache:
            return
        self.num_offered += 1
        digest = str(self.num_offered).encode()
        self.pool.offer(block_id, digest)
        assert self.pool.match([digest, b"unknown"]) == [block_id]

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.tables) - 1))
        self.pool.release(self.tables.pop(index))

    @invariant()
    def books_agree(self) -> None:
        self.pool.check_integrity(self.tables)


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = settings(max_examples=60, stateful_step_count=30)


def test_blocks_without_contents_go_before_cached_ones_and_tails_before_heads() -> None:
    pool = BlockPool(6, PrefixCache())
    cached = pool.allocate(3)
    for index, block_id in enumerate(cached):
        pool.offer(block_id, bytes([index]))
    plain = pool.allocate(1)
    pool.release(cached)
    pool.release(plain)
    assert pool.allocate(6) == [*plain, 4, 5, cached[2], cached[1], cached[0]]
    assert pool.match([bytes([0])]) == []


def test_a_cached_block_survives_until_it_is_handed_out() -> None:
    pool = BlockPool(2, PrefixCache())
    (block_id,) = pool.allocate(1)
    pool.offer(block_id, b"x")
    pool.release([block_id])
    pool.allocate(1)
    assert pool.match([b"x"]) == [block_id]
    pool.share([block_id])
    assert pool.num_free_blocks == 0


def test_releasing_too_often_is_noticed() -> None:
    pool = BlockPool(2)
    table = pool.allocate(1)
    pool.release(table)
    with pytest.raises(IntegrityError, match="Block 0"):
        pool.release(table)


def test_a_leak_is_noticed() -> None:
    pool = BlockPool(2)
    pool.allocate(1)
    with pytest.raises(IntegrityError, match="Block 0"):
        pool.check_integrity([])


def test_hashes_cover_what_came_before() -> None:
    one: list[bytes] = []
    extend_hashes(one, [1, 2, 3, 4, 5], 2)
    assert len(one) == 2
    other: list[bytes] = []
    extend_hashes(other, [9, 2, 3, 4], 2)
    assert one[1] != other[1]
    extend_hashes(one, [1, 2, 3, 4, 5, 6], 2)
    whole: list[bytes] = []
    extend_hashes(whole, [1, 2, 3, 4, 5, 6], 2)
    assert one == whole


def test_hashes_cover_whose_the_tokens_are() -> None:
    groups = (None, "alpha", "beta", 7, "7")
    found: dict[object, list[bytes]] = {group: [] for group in groups}
    for group, hashes in found.items():
        extend_hashes(hashes, [1, 2], 2, group)
        extend_hashes(hashes, [1, 2, 3, 4], 2, group)
    assert len({digest for hashes in found.values() for digest in hashes}) == 2 * len(groups)
