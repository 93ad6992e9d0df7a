"""Leaves the last shards of a backlog to workers that end them sooner, and gives such shards back to them.

While much waits, every worker takes what it can. At the end, one that is slow, or holds much, would keep all
others waiting for its last shards. An idle worker backs up a shard whose holder has become slow.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Lock

from worker.store.database import presence
from worker.store.database.session import Store
from worker.store.shards import backups
from worker.store.shards.backups import Straggler
from worker.store.watching import queueing
from worker.store.watching.queueing import HeldRequests
from worker.values.step_costs import StepCosts

# With more ready shards than this, no worker leaves one.
MAX_SHARDS = 64
# What the others must gain: a ticket that a worker does not use comes again after a while.
WORTH_SECONDS = 4.0
# Between two looks whether to give a shard back: after one that found none, and after one that did.
LOOK_SECONDS, AGAIN_SECONDS = 5.0, 0.5
# For so long, a worker does not claim again what it has given back.
AVOID_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Pace:
    """A worker's speed, and the requests that it holds."""

    costs: StepCosts
    max_rows: int  # Sequences in its largest Steps
    num_requests: int

    def step_seconds(self, num_rows: int) -> float:
        """Return the time of a Step with so many Sequences, each with one token."""
        return self.costs.step + self.costs.row * min(self.max_rows, num_rows)

    def seconds_per_token(self, num_more: int) -> float:
        """Return the time for one token of each request that it holds, and of so many more."""
        num_requests = self.num_requests + num_more
        return self.step_seconds(num_requests) * max(1.0, num_requests / self.max_rows)

    @property
    def tokens_per_second(self) -> float:
        """The rate of full Steps."""
        return self.max_rows / self.step_seconds(self.max_rows)


def leaves(
    own: Pace, others: Sequence[Pace], *, num_of_shard: int, num_ready: int, output_tokens: float
) -> bool:
    """Return whether the others end all that is ready, the shard included, well before this worker ends it.

    `num_of_shard` and `num_ready` count requests. A request is expected to generate `output_tokens`. The
    worker that would end the shard first never leaves it.
    """
    mine = own.seconds_per_token(num_of_shard)
    if mine <= min((one.seconds_per_token(num_of_shard) for one in others), default=mine):
        return False
    num_theirs = num_ready + sum(one.num_requests for one in others)
    theirs = num_theirs / sum(one.tokens_per_second for one in others)
    theirs += min(one.step_seconds(one.max_rows) for one in others)
    return output_tokens * (mine - theirs) > WORTH_SECONDS


def ends_sooner(own: Pace, late: Straggler, *, tokens_per_second: float) -> bool:
    """Return whether this worker ends the last requests of a shard well before the one that holds it.

    `tokens_per_second` is what the shard generates there. A request is expected to generate as many tokens as
    it has so far, at least those up to the mean, within its limit.
    """
    done = late.running_tokens
    expected = (late.output_tokens or 0.0) * late.num_left
    more = min(max(expected - done, done, 1.0), late.max_tokens - done)
    mine = own.costs.token * late.prompt_tokens + own.step_seconds(own.max_rows)
    mine += (done - late.stored_tokens + more) / late.num_left * own.seconds_per_token(late.num_left)
    return more > (mine + WORTH_SECONDS) * tokens_per_second and more > 0


@dataclass(slots=True)
class Tail:
    """What a worker asks before it takes a shard of its model, and while it holds some."""

    store: Store
    worker: str
    model: str | None
    _lock: Lock = field(default_factory=Lock)
    _look_at: float = 0.0  # whether to give a shard back
    _given: dict[int, float] = field(default_factory=dict)  # shards, and until when to avoid them
    # What others ran when this worker last looked whether to back it up, and when that was.
    _seen: dict[tuple[int, int], tuple[Straggler, float]] = field(default_factory=dict)

    def leaves_next(self) -> bool:
        """Return whether to leave the next shard to another worker."""
        with self.store.look() as session:
            ready = queueing.first_ready(session, model=self.model, limit=MAX_SHARDS + 1)
        # What a worker has lost or handed back is nobody's to leave.
        if not 0 < len(ready) <= MAX_SHARDS or any(shard.is_begun for shard in ready):
            return False
        if any(shard.output_tokens is None for shard in ready):
            return False
        num_ready = sum(shard.num_requests for shard in ready)
        tokens = sum(shard.num_requests * (shard.output_tokens or 0.0) for shard in ready) / num_ready
        return self._leaves(ready[0].num_requests, num_ready, tokens, num_given=0)

    def gives_back(self, shard_id: int, batch_id: str, *, num_left: int) -> bool:
        """Return whether to give back a held shard, of which so many requests have no result.

        Only if nothing else is ready, as others may then have nothing to do. This worker avoids it then.
        """
        if not num_left or time.monotonic() < self._look_at or not self._lock.acquire(blocking=False):
            return False
        try:
            self._look_at = time.monotonic() + LOOK_SECONDS
            with self.store.look() as session:
                if queueing.first_ready(session, model=self.model, limit=1):
                    return False
                tokens = queueing.expected_output(session, batch_id)
            if tokens is None or not self._leaves(num_left, num_left, tokens, num_given=num_left):
                return False
            self._given[shard_id] = time.monotonic() + AVOID_SECONDS
            self._look_at = time.monotonic() + AGAIN_SECONDS
            return True
        finally:
            self._lock.release()

    def to_back_up(self) -> Straggler | None:
        """Return a shard of another worker to back up: what it ran between two calls of this says so.

        Call it every `LOOK_SECONDS` while this worker has nothing to do.
        """
        now, seen = time.monotonic(), self._seen
        self._seen = {}
        with self.store.look() as session:
            if queueing.first_ready(session, model=self.model, limit=1):
                return None
            found = backups.stragglers(session, worker=self.worker, model=self.model)
            workers = queueing.held_requests(session, model=self.model) if found else []
        self._seen = {(one.shard_id, one.fence): (one, now) for one in found}
        own = self._loads(workers).get(self.worker)
        if own is None:
            return None
        for one in found:
            before, at = seen.get((one.shard_id, one.fence), (one, now))
            if 0 < now - at < 3 * LOOK_SECONDS and before.num_left == one.num_left:
                rate = max(0, one.running_tokens - before.running_tokens) / (now - at)
                if ends_sooner(own, one, tokens_per_second=rate):
                    return one
        return None

    def avoided(self) -> set[int]:
        """Return the shards that this worker has given back and leaves to others for now."""
        now = time.monotonic()
        for shard_id in [one for one, until in list(self._given.items()) if until < now]:
            self._given.pop(shard_id, None)
        return set(self._given)

    def _leaves(self, num_of_shard: int, num_ready: int, output_tokens: float, *, num_given: int) -> bool:
        """Return whether this worker leaves a shard, with `num_given` of the requests that it holds."""
        with self.store.look() as session:
            workers = queueing.held_requests(session, model=self.model)
            # The rows of workers that have died stay for a while.
            present = presence.present(session) if len(workers) > 1 else frozenset()
        loads = self._loads([one for one in workers if one.presence_key in present])
        own = loads.pop(self.worker, None)
        if own is None:
            return False
        own = Pace(own.costs, own.max_rows, max(0, own.num_requests - num_given))
        others = list(loads.values())
        return leaves(
            own, others, num_of_shard=num_of_shard, num_ready=num_ready, output_tokens=output_tokens
        )

    @staticmethod
    def _loads(workers: Sequence[HeldRequests]) -> dict[str, Pace]:
        return {
            one.name: Pace(costs, one.info["max_num_sequences"], one.num_requests)
            for one in workers
            if (costs := StepCosts.of_worker(one.info)) is not None
        }
