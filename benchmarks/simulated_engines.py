"""Simulated workers that share the shards of one batch: the real scheduler and prefix cache, and no model.

Time comes from assumed costs of Steps. Each worker has a clock, and the one that is furthest behind goes on.
The rules of the service say what they leave, give back and back up.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from worker.engine.scheduling.admission import make_admission
from worker.engine.scheduling.batch_gate import BatchGate
from worker.engine.scheduling.block_pool import BlockPool
from worker.engine.scheduling.prefix_cache import PrefixCache
from worker.engine.scheduling.scheduler import Scheduler
from worker.engine.sequences.sequence import Sequence as Tokens
from worker.runs.tail import AGAIN_SECONDS, LOOK_SECONDS, MAX_SHARDS, WORTH_SECONDS, Pace, ends_sooner, leaves
from worker.store.requests.requests import NewRequest
from worker.store.shards.backups import Straggler
from worker.values.outcomes import FinishReason
from worker.values.sampling import SamplingParams
from worker.values.step_costs import StepCosts

BLOCK_SIZE = 16
MAX_ROWS, MAX_STEP_TOKENS = 256, 8192
# Assumed, of a model of 8 billion parameters on a card of 24 GB.
COSTS = StepCosts(step=8e-3, row=2e-5, token=5e-5, context=2e-9, max_rows=MAX_ROWS)
# As the service's settings have them: between two saves, and tokens between two checkpoints of an output.
SAVE_SECONDS, CHECKPOINT_TOKENS = 1.5, 256


@dataclass(frozen=True, slots=True)
class Workers:
    """The simulated workers, and what they do at the end of a batch."""

    costs: tuple[StepCosts, ...]  # of each worker, as it reports them
    shard_size: int
    shards_in_flight: int
    kv_tokens: int  # of each worker
    leaves_tail: bool = False  # leave last shards to those that end them sooner, and give them back
    backs_up: bool = False  # idle workers run the last requests of slow ones too
    slowed: tuple[int, float, float] | None = None  # a worker, and from when it takes how many times as long
    # Whether a shard suits a worker that had these last; None: any does.
    prefers: Callable[[int, Sequence[int]], bool] | None = None


@dataclass(frozen=True, slots=True)
class BatchFigures:
    """What became of a batch."""

    cached: float  # share of prompt tokens that came from the cache
    seconds: float  # to the last result
    twice: float  # output tokens that were generated in vain, over those of the results


@dataclass(slots=True)
class Ready:
    """A shard that waits for a worker."""

    number: int
    sequences: list[Tokens]
    since: float = 0.0
    avoided_by: int | None = None  # the worker that gave it back


@dataclass(slots=True, eq=False)
class Worker:
    """A worker with a clock of its own."""

    number: int
    scheduler: Scheduler
    costs: StepCosts
    slowed: tuple[float, float] = (float("inf"), 1.0)
    now: float = 0.0
    look_at: float = 0.0  # whether to give a shard back
    recent: deque[int] = field(default_factory=deque)  # shards that it took last
    held: dict[int, list[Tokens]] = field(default_factory=dict)  # requests without a result, by shard
    backups: set[int] = field(default_factory=set)  # of the held shards
    num_sampled: int = 0  # tokens of outputs
    seen: dict[int, tuple[Straggler, float]] = field(default_factory=dict)

    @property
    def load(self) -> Pace:
        """Return its speed and the requests that it holds."""
        return Pace(self.costs, MAX_ROWS, sum(map(len, self.held.values())))

    def take(self, shard: Ready) -> None:
        """Begin a shard."""
        self.now = max(self.now, shard.since)
        self.held[shard.number] = list(shard.sequences)
        for sequence in shard.sequences:
            self.scheduler.add(sequence)

    def step(self) -> list[Tokens]:
        """Run one Step; return the requests that it ends."""
        plan = self.scheduler.schedule()
        self.scheduler.advance(plan)
        num_rows = len(plan.entries)
        context = sum(entry.start + entry.num_tokens for entry in plan.entries)
        seconds = self.costs.step + self.costs.row * num_rows + self.costs.context * context
        seconds += self.costs.token * (plan.num_tokens - num_rows)
        at, factor = self.slowed
        self.now += seconds * (factor if self.now >= at else 1.0)
        ended = []
        for entry in plan.entries:
            sequence = entry.sequence
            if not entry.is_sampled:
                continue
            sequence.token_ids.append(len(sequence.token_ids))
            self.num_sampled += 1
            if sequence.num_output_tokens == sequence.params.max_tokens:
                self.scheduler.finish(sequence, FinishReason.LENGTH)
                self._forget(sequence)
                ended.append(sequence)
        return ended

    def drop(self, done: dict[int, float]) -> None:
        """Cancel requests that have results of another run, as the worker learns from its saves."""
        for sequence in [one for its in self.held.values() for one in its]:
            if done.get(sequence.arrival, float("inf")) + SAVE_SECONDS <= self.now:
                self.scheduler.finish(sequence)
                self._forget(sequence)

    def _forget(self, sequence: Tokens) -> None:
        shard = int(str(sequence.request_id))
        self.held[shard].remove(sequence)
        if not self.held[shard]:
            del self.held[shard]

    def give_back(self, number: int) -> Ready:
        """Stop a shard; its requests go on elsewhere from their last token."""
        rest = self.held.pop(number)
        for sequence in rest:
            self.scheduler.finish(sequence)
        resumed = [
            to_sequence(number, one.arrival, one.token_ids, one.params.max_tokens, one.num_prompt_tokens)
            for one in rest
        ]
        return Ready(number, resumed, self.now, avoided_by=self.number)


def make_scheduler(kv_tokens: int) -> Scheduler:
    """Return the scheduler of an engine with so many tokens of KV cache."""
    pool = BlockPool(kv_tokens // BLOCK_SIZE, PrefixCache())
    admission = make_admission("length-aware", pool, block_size=BLOCK_SIZE, max_model_len=kv_tokens)
    return Scheduler(
        pool,
        admission,
        gate=BatchGate(),
        block_size=BLOCK_SIZE,
        max_num_sequences=MAX_ROWS,
        max_tokens_per_step=MAX_STEP_TOKENS,
    )


def run(
    given: Sequence[NewRequest],
    prompts: Sequence[list[int]],
    shards: Sequence[Sequence[int]],
    fleet: Workers,
) -> BatchFigures:
    """Run shards in order."""
    workers = []
    for number, costs in enumerate(fleet.costs):
        worker = Worker(number, make_scheduler(fleet.kv_tokens), costs)
        if fleet.slowed is not None and fleet.slowed[0] == number:
            worker.slowed = fleet.slowed[1:]
        workers.append(worker)
    sequences = [
        [to_sequence(number, index, prompts[index], given[index].max_tokens) for index in members]
        for number, members in enumerate(shards)
    ]
    expected = sum(request.max_tokens for request in given) / len(given)
    waiting = deque(Ready(number, its) for number, its in enumerate(sequences))
    batch = _Batch(fleet, workers, waiting, expected)
    while len(batch.done) < len(given):
        batch.turn()
    every = [one for its in sequences for one in its]
    cached = sum(one.num_cached_tokens or 0 for one in every)
    needed = sum(request.max_tokens for request in given)
    return BatchFigures(
        cached / sum(one.num_prompt_tokens for one in every),
        max(batch.done.values()),
        sum(one.num_sampled for one in workers) / needed - 1.0,
    )


@dataclass(slots=True)
class _Batch:
    """The shards of a batch that wait or run, and the times of its results."""

    fleet: Workers
    workers: Sequence[Worker]
    waiting: deque[Ready]
    expected: float  # tokens of an output
    done: dict[int, float] = field(default_factory=dict)  # by place of the request in the batch
    backed_up: set[int] = field(default_factory=set)

    def turn(self) -> None:
        """Let the worker that is furthest behind take shards and run a Step."""
        backs_up = self.fleet.backs_up
        worker = min(
            (one for one in self.workers if one.held or self.waiting or backs_up), key=lambda one: one.now
        )
        self._take(worker)
        if not worker.held and not self.waiting and backs_up:
            self._back_up(worker)
        if not worker.held:
            # A ticket that it did not use comes again; without tickets it looks whether to back something up.
            worker.now += WORTH_SECONDS / 2 if self.waiting else LOOK_SECONDS
            return
        if self.fleet.leaves_tail and not self.waiting and worker.now >= worker.look_at:
            self._give_back(worker)
        if self.backed_up:
            worker.drop(self.done)
        if worker.held:
            for sequence in worker.step():
                self.done.setdefault(sequence.arrival, worker.now)

    def _others(self, worker: Worker) -> list[Pace]:
        return [one.load for one in self.workers if one is not worker]

    def _take(self, worker: Worker) -> None:
        while self.waiting and len(worker.held) < self.fleet.shards_in_flight:
            if self.waiting[0].avoided_by == worker.number:
                return
            if self.fleet.leaves_tail and self._leaves_next(worker):
                return
            self._prefer(worker)
            worker.recent.append(self.waiting[0].number)
            if len(worker.recent) > self.fleet.shards_in_flight:
                worker.recent.popleft()
            worker.take(self.waiting.popleft())

    def _prefer(self, worker: Worker) -> None:
        """Move the first shard that suits a worker to the front, else the first that suits no other."""
        suits = self.fleet.prefers
        if suits is None:
            return
        chosen = None
        for place, shard in enumerate(self.waiting):
            if place == MAX_SHARDS or shard.avoided_by is not None:
                break
            if suits(shard.number, worker.recent):
                chosen = place
                break
            others = (one for one in self.workers if one is not worker)
            if chosen is None and not any(suits(shard.number, one.recent) for one in others):
                chosen = place
        if chosen:
            shard = self.waiting[chosen]
            del self.waiting[chosen]
            self.waiting.appendleft(shard)

    def _leaves_next(self, worker: Worker) -> bool:
        """Return whether a worker leaves the next shard to the others, as the service decides it."""
        waiting = self.waiting
        if len(waiting) > MAX_SHARDS or waiting[0].avoided_by is not None:
            return False
        num_ready = sum(len(one.sequences) for one in waiting)
        return leaves(
            worker.load,
            self._others(worker),
            num_of_shard=len(waiting[0].sequences),
            num_ready=num_ready,
            output_tokens=self.expected,
        )

    def _give_back(self, worker: Worker) -> None:
        own = [number for number in worker.held if number not in self.backed_up]
        if not own:
            return
        rest = len(worker.held[own[-1]])
        load = replace(worker.load, num_requests=worker.load.num_requests - rest)
        size = {"num_of_shard": rest, "num_ready": rest}
        is_given = leaves(load, self._others(worker), **size, output_tokens=self.expected)
        worker.look_at = worker.now + (AGAIN_SECONDS if is_given else LOOK_SECONDS)
        if is_given:
            self.waiting.append(worker.give_back(own[-1]))

    def _back_up(self, worker: Worker) -> None:
        """Let an idle worker back up a shard, by what it ran since the last look."""
        seen, worker.seen = worker.seen, {}
        for other in self.workers:
            for number, its in other.held.items():
                if number in self.backed_up:
                    continue
                late = self._straggler(number, its)
                worker.seen[number] = (late, worker.now)
                before, at = seen.get(number, (late, worker.now))
                if at == worker.now or before.num_left != late.num_left:
                    continue
                rate = max(0, late.running_tokens - before.running_tokens) / (worker.now - at)
                if ends_sooner(worker.load, late, tokens_per_second=rate):
                    self.backed_up.add(number)
                    worker.take(Ready(number, [_copy(number, one) for one in its], worker.now))
                    return

    def _straggler(self, number: int, its: Sequence[Tokens]) -> Straggler:
        return Straggler(
            number,
            1,
            num_left=len(its),
            prompt_tokens=sum(one.num_prompt_tokens for one in its),
            running_tokens=sum(one.num_output_tokens for one in its),
            stored_tokens=sum(map(_stored, its)),
            max_tokens=sum(one.params.max_tokens for one in its),
            output_tokens=self.expected,
        )


def _stored(sequence: Tokens) -> int:
    return sequence.num_output_tokens // CHECKPOINT_TOKENS * CHECKPOINT_TOKENS


def _copy(number: int, one: Tokens) -> Tokens:
    known = one.token_ids[: one.num_prompt_tokens + _stored(one)]
    return to_sequence(number, one.arrival, known, one.params.max_tokens, one.num_prompt_tokens)


def to_sequence(
    shard: int, arrival: int, token_ids: list[int], max_tokens: int, num_prompt_tokens: int | None = None
) -> Tokens:
    """Return a request of a shard as a worker's scheduler takes it, perhaps with tokens of its output."""
    return Tokens(
        request_id=shard,
        arrival=arrival,
        token_ids=list(token_ids),
        num_prompt_tokens=len(token_ids) if num_prompt_tokens is None else num_prompt_tokens,
        params=SamplingParams(max_tokens=max_tokens),
        seed=0,
        stop_token_ids=frozenset(),
        job="batch",
    )
