"""Allocates Blocks and counts their references. Knows the ids of Blocks, no tensors."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from worker.engine.requests.errors import IntegrityError, OutOfBlocksError
from worker.engine.scheduling.prefix_cache import PrefixCache


class BlockPool:
    """Reference counts of a fixed number of Blocks, with a free list in eviction order.

    A free Block in the prefix cache keeps its contents until it is allocated again. Allocation takes uncached
    Blocks first, then cached ones, least recently freed first.
    """

    __slots__ = ("_free", "_prefix_cache", "_reference_counts", "num_blocks")

    def __init__(self, num_blocks: int, prefix_cache: PrefixCache | None = None) -> None:
        self.num_blocks = num_blocks
        self._prefix_cache = prefix_cache
        self._reference_counts = [0] * num_blocks
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))

    @property
    def num_free_blocks(self) -> int:
        """Number of Blocks that no Sequence holds, including cached ones."""
        return len(self._free)

    @property
    def num_used_blocks(self) -> int:
        """Number of Blocks that Sequences hold."""
        return self.num_blocks - len(self._free)

    @property
    def num_cached_blocks(self) -> int:
        """Number of Blocks that the prefix cache can find, held or free."""
        return 0 if self._prefix_cache is None else len(self._prefix_cache)

    @property
    def is_caching(self) -> bool:
        """True if a prefix cache lets Sequences share Blocks with equal contents."""
        return self._prefix_cache is not None

    @property
    def num_evictions(self) -> int:
        """Number of cached Blocks that were allocated again, which forgot their contents."""
        return 0 if self._prefix_cache is None else self._prefix_cache.num_evictions

    def is_free(self, block_id: int) -> bool:
        """Return whether no Sequence holds the Block."""
        return self._reference_counts[block_id] == 0

    def count_unshared(self, block_table: Sequence[int]) -> int:
        """Return how many Blocks of a table no other Sequence holds."""
        return sum(self._reference_counts[block_id] == 1 for block_id in block_table)

    def match(self, digests: Sequence[bytes]) -> list[int]:
        """Return the Blocks of the longest cached prefix of `digests`; takes no reference on them."""
        blocks: list[int] = []
        if self._prefix_cache is not None:
            for digest in digests:
                block_id = self._prefix_cache.find(digest)
                if block_id is None:
                    break
                blocks.append(block_id)
        return blocks

    def share(self, block_ids: Iterable[int]) -> None:
        """Add one reference to each Block, free or held."""
        for block_id in block_ids:
            if self._reference_counts[block_id] == 0:
                del self._free[block_id]
            self._reference_counts[block_id] += 1

    def allocate(self, count: int) -> list[int]:
        """Take `count` free Blocks and forget their contents; or take none and raise OutOfBlocksError."""
        if count > len(self._free):
            raise OutOfBlocksError(
                f"cannot allocate {count} Blocks: {len(self._free)} of {self.num_blocks} are free"
            )
        blocks = [self._free.popitem(last=False)[0] for _ in range(count)]
        for block_id in blocks:
            self._reference_counts[block_id] = 1
            if self._prefix_cache is not None:
                self._prefix_cache.evict(block_id)
        return blocks

    def release(self, block_table: Sequence[int]) -> None:
        """Drop one reference of each Block in a table, last Block first, so tails are reused before heads."""
        for block_id in reversed(block_table):
            count = self._reference_counts[block_id] - 1
            if count < 0:
                raise IntegrityError(f"Block {block_id} was released more often than it was taken")
            self._reference_counts[block_id] = count
            if count == 0:
                self._free[block_id] = None
                if self._prefix_cache is None or block_id not in self._prefix_cache:
                    self._free.move_to_end(block_id, last=False)

    def offer(self, block_id: int, digest: bytes) -> None:
        """Put a full, computed Block into the prefix cache, so that later Sequences can share it."""
        if self._prefix_cache is not None:
            self._prefix_cache.insert(digest, block_id)

    def clear_cache(self) -> None:
        """Forget the contents of all Blocks; Sequences keep the Blocks they hold."""
        if self._prefix_cache is not None:
            self._prefix_cache.clear()

    def check_integrity(self, block_tables: Iterable[Sequence[int]]) -> None:
        """Check reference counts against the tables of all live Sequences; raises IntegrityError."""
        expected = [0] * self.num_blocks
        for table in block_tables:
            if len(set(table)) != len(table):
                raise IntegrityError(f"a block table contains a Block twice: {list(table)}")
            for block_id in table:
                expected[block_id] += 1
        for block_id, (count, held) in enumerate(zip(self._reference_counts, expected, strict=True)):
            if count != held:
                raise IntegrityError(
                    f"Block {block_id} has {count} references, but is in {held} block tables"
                )
            if (count == 0) != (block_id in self._free):
                raise IntegrityError(f"Block {block_id} has {count} references, but the free list disagrees")
        if self._prefix_cache is not None:
            for digest, block_id in self._prefix_cache.items():
                if block_id not in self._prefix_cache or self._prefix_cache.find(digest) != block_id:
                    raise IntegrityError(
                        f"Block {block_id}: the prefix cache finds another Block for its digest"
                    )
