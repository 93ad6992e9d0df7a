"""Finds the Block that holds given tokens of a group, by a hash chain over full Blocks."""

import hashlib
from array import array
from collections.abc import Hashable, Sequence


def extend_hashes(
    hashes: list[bytes], token_ids: Sequence[int], block_size: int, group: Hashable = None
) -> None:
    """Append to `hashes` one digest for each full Block of `token_ids` that has none yet.

    A digest covers its Block's tokens and, through its parent digest, all tokens before them and their group.
    It has 128 bits, so that different prefixes do not collide.
    """
    parent = hashes[-1] if hashes else _digest(repr(group).encode())
    for start in range(len(hashes) * block_size, len(token_ids) - block_size + 1, block_size):
        tokens = array("q", token_ids[start : start + block_size]).tobytes()
        parent = _digest(parent + tokens)
        hashes.append(parent)


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()


class PrefixCache:
    """Two-way map between digests and the Blocks that hold their tokens."""

    __slots__ = ("_block_by_digest", "_digest_by_block", "num_evictions")

    def __init__(self) -> None:
        self._block_by_digest: dict[bytes, int] = {}
        self._digest_by_block: dict[int, bytes] = {}
        self.num_evictions = 0

    def __len__(self) -> int:
        return len(self._block_by_digest)

    def __contains__(self, block_id: int) -> bool:
        return block_id in self._digest_by_block

    def find(self, digest: bytes) -> int | None:
        """Return the Block that holds these tokens; None if there is none."""
        return self._block_by_digest.get(digest)

    def insert(self, digest: bytes, block_id: int) -> None:
        """Record that `block_id` holds these tokens, unless another Block already does."""
        if digest not in self._block_by_digest:
            self._block_by_digest[digest] = block_id
            self._digest_by_block[block_id] = digest

    def evict(self, block_id: int) -> None:
        """Forget a Block that is about to be overwritten; ignores one that is not cached."""
        digest = self._digest_by_block.pop(block_id, None)
        if digest is not None:
            del self._block_by_digest[digest]
            self.num_evictions += 1

    def clear(self) -> None:
        """Forget every Block."""
        self._block_by_digest.clear()
        self._digest_by_block.clear()

    def items(self) -> list[tuple[bytes, int]]:
        """Return every (digest, Block) pair."""
        return list(self._block_by_digest.items())
