"""Assigns the requests of a new batch, or of a chunk of its file, to shards. Uses no database.

Identical requests go to one shard, so that one of them runs there, and its Result, recorded under one fence,
becomes the Result of all of them. Requests of different priorities go to different shards. Requests whose
prompts begin alike follow each other, so that a worker computes their common beginning once, and those with
long outputs come first, so that none of these runs alone at the end: docs/decisions/0031.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from worker.store.requests.requests import NewRequest
from worker.values.caching import request_digest
from worker.values.sampling import SamplingParams

# The most different requests that are kept in memory, as a batch may have more. A copy runs again if more
# than this many different requests have come since the last identical one.
MAX_REMEMBERED = 100_000
# The most requests in a shard, as one save may have to write all their rows; a further copy runs again.
MAX_ROWS = 10_000
# The fewest characters that two prompts must share to stay together: about a Block of tokens.
MIN_COMMON = 64


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

    def place_all(
        self, given: Sequence[NewRequest], digests: Sequence[bytes | None], priorities: Sequence[int]
    ) -> list[int]:
        """Return the index of each request's shard; shards of higher priority come first.

        `digests` holds `digest_of` each request, `priorities` the priority with which it runs.
        """
        placed = [0] * len(given)
        for index in _arrange(given, priorities):
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


def _arrange(given: Sequence[NewRequest], priorities: Sequence[int]) -> list[int]:
    """Return the indices of requests in the order in which shards take them.

    Sorted by text, neighbours with a common beginning form a group. Within a priority, the longest possible
    outputs go first, by powers of two; then the group that begins first; then requests by text. Neighbours
    that share half of the shorter prompt stay together, so they count as long as the longest of them.
    """
    texts = [_text_of(request) for request in given]
    by_text = sorted(range(len(given)), key=lambda index: (texts[index], index))
    first, length, place = [0] * len(given), [0] * len(given), [0] * len(given)
    for group in _runs(by_text, texts, lambda _: MIN_COMMON):
        earliest = min(group)
        for index in group:
            first[index] = earliest
    for near in _runs(by_text, texts, lambda length: max(MIN_COMMON, length // 2)):
        longest = max(given[index].max_tokens for index in near).bit_length()
        for index in near:
            length[index] = longest
    for at, index in enumerate(by_text):
        place[index] = at
    return sorted(by_text, key=lambda index: (-priorities[index], -length[index], first[index], place[index]))


def _runs(
    by_text: Sequence[int], texts: Sequence[str], num_common: Callable[[int], int]
) -> Iterator[list[int]]:
    """Cut sorted prompts where neighbours share fewer characters than their shorter one's length requires."""
    run: list[int] = []
    for index in by_text:
        if run:
            before, text = texts[run[-1]], texts[index]
            shorter = min(len(before), len(text))
            count = num_common(shorter)
            if shorter < count or before[:count] != text[:count]:
                yield run
                run = []
        run.append(index)
    if run:
        yield run


def _text_of(request: NewRequest) -> str:
    """Return text that begins alike for requests whose tokens begin alike."""
    first = request.prompts[0]
    return first if isinstance(first, str) else " ".join(map(str, first))


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
