"""Leaves the last shards of a backlog to workers that finish them sooner.

While much waits, every worker takes what it can. At the end, one that is slow, or holds much, would keep all
others waiting for its last shard.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from worker.store.database import presence
from worker.store.database.session import Store
from worker.store.watching import queueing
from worker.store.watching.queueing import HeldRequests, ReadyShard
from worker.values.step_costs import StepCosts

# With more ready shards than this, no worker leaves one.
MAX_SHARDS = 64
# What this worker must lose on the others: a ticket that it does not use comes again after a while.
WORTH_SECONDS = 4.0


@dataclass(frozen=True, slots=True)
class Load:
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
    own: Load, others: Sequence[Load], *, num_of_shard: int, num_ready: int, output_tokens: float
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


@dataclass(frozen=True, slots=True)
class Tail:
    """What a worker asks before it takes a shard of its model."""

    store: Store
    worker: str
    model: str | None

    def leaves_next(self) -> bool:
        """Return whether to leave the next shard to another worker."""
        with self.store.look() as session:
            ready = queueing.first_ready(session, model=self.model, limit=MAX_SHARDS + 1)
            # What a worker has lost or handed back is nobody's to leave.
            if not 0 < len(ready) <= MAX_SHARDS or any(shard.is_begun for shard in ready):
                return False
            workers = queueing.held_requests(session, model=self.model)
            # The rows of workers that have died stay for a while.
            if not self._leaves(ready, workers):
                return False
            present = presence.present(session)
        return self._leaves(ready, [one for one in workers if one.presence_key in present])

    def _leaves(self, ready: Sequence[ReadyShard], workers: Sequence[HeldRequests]) -> bool:
        loads = {
            one.name: Load(costs, one.info["max_num_sequences"], one.num_requests)
            for one in workers
            if (costs := StepCosts.of_worker(one.info)) is not None
        }
        own = loads.pop(self.worker, None)
        if own is None:
            return False
        num_ready = sum(shard.num_requests for shard in ready)
        tokens = sum(shard.num_requests * shard.output_tokens for shard in ready) / num_ready
        others, num_of_shard = list(loads.values()), ready[0].num_requests
        return leaves(own, others, num_of_shard=num_of_shard, num_ready=num_ready, output_tokens=tokens)
