"""Which shard each request of a new batch goes to, one after the other. Touches no database.

Identical requests go to one shard, so that it is run once there and its Result, recorded under one fence,
becomes the Result of all of them.
"""

from collections import OrderedDict
from dataclasses import dataclass, field

# A batch may have more different requests than one wants to keep in memory: copies that come later than this
# many after the last one are run again.
MAX_REMEMBERED = 100_000
# Rows that one save may have to write at once; the copy after that is run again.
MAX_ROWS = 10_000


@dataclass(slots=True)
class Placement:
    """Fills shards with `shard_size` different requests each, and their copies."""

    shard_size: int
    num_requests: list[int] = field(default_factory=list)  # of each shard, copies included
    _num_different: int = 0  # in the newest shard
    _shard_by_digest: OrderedDict[bytes, int] = field(default_factory=OrderedDict)

    def place(self, digest: bytes | None) -> int:
        """Return the number, from 0, of the shard that takes the next request."""
        if digest is not None:
            shard = self._shard_by_digest.get(digest)
            if shard is not None and self.num_requests[shard] < MAX_ROWS:
                self._shard_by_digest.move_to_end(digest)
                self.num_requests[shard] += 1
                return shard
        if not self.num_requests or self._num_different == self.shard_size:
            self.num_requests.append(0)
            self._num_different = 0
        shard = len(self.num_requests) - 1
        self.num_requests[shard] += 1
        self._num_different += 1
        if digest is not None:
            self._shard_by_digest[digest] = shard
            self._shard_by_digest.move_to_end(digest)
            if len(self._shard_by_digest) > MAX_REMEMBERED:
                self._shard_by_digest.popitem(last=False)
        return shard
