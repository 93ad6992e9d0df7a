"""Lets Sequences with equal prompts share Blocks through the prefix cache. Knows no tensors."""

from worker.engine.scheduling.block_pool import BlockPool
from worker.engine.scheduling.prefix_cache import extend_hashes
from worker.engine.sequences.sequence import Sequence


class PrefixSharing:
    """Offers computed Blocks to the prefix cache, and knows which are being computed."""

    def __init__(self, block_pool: BlockPool, *, block_size: int, shares_between_groups: bool) -> None:
        self._pool = block_pool
        self._block_size = block_size
        self._shares_between_groups = shares_between_groups
        # The running Sequence that is about to compute a full prompt Block, by the Block's digest.
        self._computing: dict[bytes, Sequence] = {}

    def extend(self, sequence: Sequence) -> None:
        """Bring the digests of a Sequence's Blocks up to date, if it may share any."""
        if self._pool.is_caching and sequence.is_shareable:
            group = None if self._shares_between_groups else sequence.share.group
            extend_hashes(sequence.block_hashes, sequence.token_ids, self._block_size, group)

    def cached(self, sequence: Sequence) -> list[int]:
        """Return the cached Blocks that a waiting Sequence begins with."""
        return self._pool.match(self._digests(sequence))

    def is_computed(self, sequence: Sequence, cached: list[int]) -> bool:
        """Return whether another Sequence computes the Block after the cached ones now."""
        digests = self._digests(sequence)
        return len(cached) < len(digests) and digests[len(cached)] in self._computing

    def admitted(self, sequence: Sequence, cached: list[int]) -> None:
        """Record that a Sequence computes its Blocks after the cached ones."""
        sequence.num_hashed_blocks = len(cached)
        for digest in sequence.block_hashes[len(cached) :]:
            self._computing.setdefault(digest, sequence)

    def stopped(self, sequence: Sequence) -> None:
        """Record that a Sequence computes no further Blocks."""
        for digest in sequence.block_hashes[sequence.num_hashed_blocks :]:
            self._forget(digest, sequence)
        sequence.num_hashed_blocks = 0

    def offer(self, sequence: Sequence) -> None:
        """Offer the full Blocks that a Sequence has computed since the last call."""
        num_computed = sequence.num_computed_tokens // self._block_size
        may_offer = self._pool.is_caching and sequence.is_shareable
        if not may_offer or num_computed <= sequence.num_hashed_blocks:
            return
        self.extend(sequence)
        for index in range(sequence.num_hashed_blocks, num_computed):
            digest = sequence.block_hashes[index]
            self._pool.offer(sequence.block_table[index], digest)
            self._forget(digest, sequence)
            sequence.num_hashed_blocks = index + 1

    def _digests(self, sequence: Sequence) -> list[bytes]:
        # A row that is still to be read must run, so its Block is not taken from the cache: without a row
        # there is no next token to choose.
        return sequence.block_hashes[: sequence.next_row // self._block_size]

    def _forget(self, digest: bytes, sequence: Sequence) -> None:
        if self._computing.get(digest) is sequence:
            del self._computing[digest]
