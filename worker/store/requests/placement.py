"""Assigns the requests of a new batch to shards, one after the other. Uses no database.

Identical requests go to one shard, so that one of them runs there, and its Result, recorded under one fence,
becomes the Result of all of them. Requests of different priorities go to different shards.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from worker.store.requests.requests import NewRequest
from worker.values.caching import request_digest
from worker.values.sampling import SamplingParams

# The most different requests that are kept in memory, as a batch may have more. A copy runs again if more
# than this many different requests have come since the last identical one.
MAX_REMEMBERED = 100_000
# The most requests in a shard, as one save may have to write all their rows; a further copy runs again.
MAX_ROWS = 10_000


@dataclass(slots=True)
class NewShard:
    """A shard to write."""

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
        """Return the index of each request's shard; shards of higher priority come first."""
        placed = [0] * len(digests)
        for index in sorted(range(len(digests)), key=lambda index: -priorities[index]):
            placed[index] = self._place(digests[index], priorities[index])
        return placed

    def _place(self, digest: bytes | None, priority: int) -> int:
        if digest is not None:
            # The first of identical requests has the highest priority, so none waits for a later shard.
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


def priority_of(request: NewRequest, batch_priority: int) -> int:
    """Return the priority with which a request runs."""
    return batch_priority if request.priority is None else request.priority


def digest_of(request: NewRequest, batch_params: SamplingParams) -> bytes | None:
    """Return the digest that identical requests share; None if the answer may differ, or is an error."""
    if request.error is not None or request.tool_loop is not None:
        return None
    return request_digest(
        request.prompts,
        request.params or batch_params,
        max_tokens=request.max_tokens,
        add_special_tokens=request.add_special_tokens,
        timeout_seconds=request.timeout_seconds,
    )
