"""Which shard each request of a new batch goes to, one after the other. Touches no database.

Identical requests go to one shard, so that it is run once there and its Result, recorded under one fence,
becomes the Result of all of them. Requests of different priorities go to different shards.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

# A batch may have more different requests than one wants to keep in memory: copies that come later than this
# many after the last one are run again.
MAX_REMEMBERED = 100_000
# Rows that one save may have to write at once; the copy after that is run again.
MAX_ROWS = 10_000


@dataclass(slots=True)
class NewShard:
    """A shard to be written."""

    priority: int
    num_requests: int = 0  # copies included


@dataclass(slots=True)
class Placement:
    """Fills shards with `shard_size` different requests each, and their copies."""

    shard_size: int
    shards: list[NewShard] = field(default_factory=list)
    _num_different: int = 0  # in the newest shard
    _shard_by_digest: OrderedDict[bytes, int] = field(default_factory=OrderedDict)

    def place_all(self, digests: Sequence[bytes | None], priorities: Sequence[int]) -> list[int]:
        """Return the number, from 0, of the shard that takes each request; higher priorities come first."""
        placed = [0] * len(digests)
        for index in sorted(range(len(digests)), key=lambda index: -priorities[index]):
            placed[index] = self._place(digests[index], priorities[index])
        return placed

    def _place(self, digest: bytes | None, priority: int) -> int:
        if digest is not None:
            # Of identical requests the first one has the highest priority: none waits for a later shard.
            shard = self._shard_by_digest.get(digest)
            if shard is not None and self.shards[shard].num_requests < MAX_ROWS:
                self._shard_by_digest.move_to_end(digest)
                self.shards[shard].num_requests += 1
                return shard
        newest = self.shards[-1] if self.shards else None
        if newest is None or newest.priority != priority or self._num_different == self.shard_size:
            newest = NewShard(priority)
            self.shards.append(newest)
            self._num_different = 0
        shard = len(self.shards) - 1
        newest.num_requests += 1
        self._num_different += 1
        if digest is not None:
            self._shard_by_digest[digest] = shard
            self._shard_by_digest.move_to_end(digest)
            if len(self._shard_by_digest) > MAX_REMEMBERED:
                self._shard_by_digest.popitem(last=False)
        return shard
