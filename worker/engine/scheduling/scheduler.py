"""Plans each Step: which Sequences run, with how many tokens. Knows no tensors.

There are no separate modes for prefill and decode: each Step runs known tokens that are not computed yet.
Running Sequences go first, in order of arrival, then waiting ones, as the admission policy chooses. Urgent
Sequences go before all others (worker/engine/scheduling/turns.py).
"""

import time
from bisect import insort
from collections.abc import Sequence as Items
from heapq import heappop, heappush

from worker.engine.requests.stats import EngineStats
from worker.engine.scheduling.admission.fair_shares import FairShares
from worker.engine.scheduling.batch_gate import BatchGate
from worker.engine.scheduling.block_pool import BlockPool
from worker.engine.scheduling.giving_way import least, order
from worker.engine.scheduling.plan import ScheduledSequence, StepPlan
from worker.engine.scheduling.prefix_sharing import PrefixSharing
from worker.engine.scheduling.step_limits import StepLimits
from worker.engine.scheduling.turns import Turn, Turns
from worker.engine.sequences.sequence import Sequence, SequenceState
from worker.values.outcomes import FinishReason

# Fewer Sequences of each Step that runs beside others would not pay: all threads run one Step instead.
LEAST_ROWS = 8


class Scheduler:
    """Assigns Blocks, rows and a Step's token budget to Sequences.

    The oldest running Sequence is never preempted and any Sequence fits the pool alone, so every Step makes
    progress. Planning takes time in proportion to the running Sequences, not to the waiting ones.

    Urgent Sequences are admitted first, up to half of the rows, and preempt others, which resume later. The
    oldest Sequence that is not urgent is never preempted for them, so other work always continues.
    """

    def __init__(
        self,
        block_pool: BlockPool,
        admission: FairShares,
        *,
        block_size: int,
        max_num_sequences: int,
        max_tokens_per_step: int,
        steps_at_once: int = 1,  # the most that `schedule` may be told
        least_rows_beside: int = 0,  # of each Step, if more than LEAST_ROWS
        shares_prefixes: bool = False,  # between groups
        gate: BatchGate | None = None,  # None: continuous batching
        stats: EngineStats | None = None,
    ) -> None:
        self.block_pool = block_pool
        self._prefixes = PrefixSharing(
            block_pool, block_size=block_size, shares_between_groups=shares_prefixes
        )
        self.stats = stats or EngineStats()
        self._admission = admission
        self._gate = BatchGate() if gate is None else gate
        self._block_size = block_size
        self.limits = StepLimits(max_num_sequences, max_tokens_per_step, least_rows_beside)
        self._running: list[Sequence] = []  # urgent ones first, then by arrival
        self._urgent: list[tuple[int, Sequence]] = []  # waiting ones, a heap by arrival
        self._max_urgent = max(1, max_num_sequences // 2)
        self.num_steps = 0  # that have begun and not ended
        self._leaving: list[Sequence] = []  # finished ones that a Step still holds
        self._must_make_room = False  # an urgent Sequence waits for running ones to end
        self._turns = Turns()
        self._num_waiting = 0  # the policy may also hold cancelled Sequences
        self._num_waiting_behind_gate = 0  # of them: generations that are not urgent
        self._is_settled = False  # waiting Sequences were refused, and no room was made since
        self._free_rows = list(range(max_num_sequences * steps_at_once))

    @property
    def running(self) -> tuple[Sequence, ...]:
        """Sequences that hold Blocks, urgent ones first, then by arrival."""
        return tuple(self._running)

    @property
    def num_running(self) -> int:
        """Number of Sequences that hold Blocks."""
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        """Number of Sequences that hold none."""
        return self._num_waiting

    @property
    def wait_seconds(self) -> float | None:
        """Seconds until a Step may have work; None: nothing runs and nothing waits."""
        if self._running or self.num_steps or self._num_waiting > self._num_waiting_behind_gate:
            return 0.0
        return self._gate.wait_seconds(self._num_waiting) if self._num_waiting else None

    def add(self, sequence: Sequence) -> None:
        """Queue a Sequence that fits the pool alone."""
        self._prefixes.extend(sequence)
        self._enqueue(sequence)

    def rows_beside(self, num_steps: int) -> int | None:
        """Return the most Sequences of each Step if so many run at once; None: only one may run now."""
        num_waiting = 0 if self._is_settled else self._num_waiting  # no room for them
        expected = self.limits.expected(len(self._running), num_waiting)
        if expected < max(LEAST_ROWS, self.limits.least_rows_beside) * num_steps or self._urgent:
            return None
        is_plain = not any(one.is_urgent or one.is_alone for one in self._running)
        return -(-expected // num_steps) if is_plain else None

    @property
    def has_others(self) -> bool:
        """True if a Step may find a Sequence that is in no other Step."""
        return self._num_waiting > 0 or any(not one.is_in_step for one in self._running)

    def begin(self, plan: StepPlan) -> None:
        """Keep a Step's Sequences as they are until `end`, while others are planned."""
        self.num_steps += 1
        for entry in plan.entries:
            entry.sequence.is_in_step = True

    def end(self, plan: StepPlan) -> None:
        """Let other Steps have the Sequences of a Step that has ended."""
        self.num_steps -= 1
        for entry in plan.entries:
            entry.sequence.is_in_step = False
        for sequence in [one for one in self._leaving if not one.is_in_step]:
            self._leaving.remove(sequence)
            self._release(sequence)

    def schedule(self, num_steps: int = 1) -> StepPlan:
        """Return the next Step's plan, with Blocks allocated for every token in it.

        It leaves out the Sequences of Steps between `begin` and `end`. If up to `num_steps` run at once, each
        has its share of the Sequences and of the tokens. If it has few Sequences and tokens although no other
        Step runs, the others cannot run now, so it runs alone.
        """
        preemptions = self.stats.preemptions
        self._admit_urgent(num_steps)
        most = self.rows_beside(num_steps) if num_steps > 1 else None
        turn = self._turns.next(self._running, self._few)
        size = self.limits.share(most)
        entries = self._share_out(turn, size)
        if self._running and not (entries or self.num_steps):
            # The Sequence to run alone got no Block; the first always does.
            turn = Turn(alone=self._running[0])
            entries = self._share_out(turn, size)
        self._admission.start_step()
        can_admit = turn.is_for_all and not self._must_make_room and not self._is_settled
        if can_admit and self.stats.preemptions == preemptions:
            is_open = self._gate.opens(self._num_waiting_behind_gate, self._running)
            if is_open or self._num_waiting > self._num_waiting_behind_gate:
                self._admit_waiting(entries, size)
        self._turns.note(entries, is_waiting=self._num_waiting > len(self._urgent))
        self.stats.evictions = self.block_pool.num_evictions
        if entries:
            self.stats.kv_used_block_steps += self.block_pool.num_used_blocks
            self.stats.kv_block_steps += self.block_pool.num_blocks
        is_full = len(entries) >= LEAST_ROWS or sum(entry.num_tokens for entry in entries) >= size[1]
        return StepPlan(tuple(entries), bool(turn.few), most if self.num_steps or is_full else None)

    def took(self, plan: StepPlan, seconds: float) -> None:
        """Record how long a Step took, which decides whether small batches get extra Steps."""
        self._turns.took(seconds, is_for_few=plan.is_for_few)
        if not plan.is_for_few:
            self._gate.took(seconds, len(plan.entries))

    def advance(self, plan: StepPlan) -> None:
        """Count a started Step's tokens as computed: later Steps build on them and share their Blocks."""
        self.limits.step_was_good()
        for entry in plan.entries:
            sequence, start = entry.sequence, entry.start
            if sequence.state is SequenceState.FINISHED:
                continue  # its previous token ended it, which the host saw after planning this Step
            num_new, num_again = sequence.advance(start, start + entry.num_known)
            self.stats.prefill_tokens += num_new
            self.stats.recomputed_tokens += num_again
            self._prefixes.offer(sequence)

    def shrink(self, plan: StepPlan) -> bool:
        """Halve the size of Steps after `plan` ran out of memory, preempting the youngest Sequences.

        Returns False if Steps cannot be smaller. That Step did not run: its Sequences are as before it.
        """
        if not self.limits.shrink(plan.num_tokens):
            return False
        while len(self._running) > self.limits.max_num_sequences:
            self._preempt(self._running[-1])
        return True

    def finish(self, sequence: Sequence, reason: FinishReason | None = None) -> None:
        """Remove a running or waiting Sequence and release its Blocks and row.

        `reason` is why a generation ended; its output length is learned from STOP and LENGTH.
        """
        is_whole = reason in {FinishReason.STOP, FinishReason.LENGTH}
        if is_whole and sequence.is_generating and not sequence.is_urgent:
            self._admission.learn(sequence, is_cut=reason is FinishReason.LENGTH)
        self._is_settled = False
        if sequence.state is SequenceState.RUNNING:
            self._stop(sequence)
        elif sequence.state is SequenceState.WAITING:
            self._leave_queue(sequence)
        sequence.state = SequenceState.FINISHED

    def check_integrity(self) -> None:
        """Check the pool's reference counts against the Sequences; raises IntegrityError."""
        self.block_pool.check_integrity(sequence.block_table for sequence in (*self._running, *self._leaving))

    def _enqueue(self, sequence: Sequence) -> None:
        sequence.state = SequenceState.WAITING
        if sequence.is_urgent:
            heappush(self._urgent, (sequence.arrival, sequence))
        else:
            self._admission.add(sequence)
        self._num_waiting += 1
        self._num_waiting_behind_gate += sequence.may_be_held
        self._is_settled = False

    def _few(self) -> frozenset[Sequence]:
        few = self._admission.few()
        return frozenset(one for one in few if not one.is_in_step) if self.num_steps else few

    def _share_out(self, turn: Turn, size: tuple[int, int]) -> list[ScheduledSequence]:
        """Return the part of each running Sequence that the turn includes, with Blocks allocated for it."""
        entries: list[ScheduledSequence] = []
        most, budget = size
        included = [one for one in self._running if turn.includes(one) and not one.is_in_step][:most]
        for num_later, sequence in zip(reversed(range(len(included))), included, strict=True):
            if sequence.state is not SequenceState.RUNNING:
                continue  # preempted for a Sequence before it
            if sequence.num_pending_tokens and sequence.is_at_end:
                continue  # ends as soon as the host sees its last token
            # Each later Sequence keeps one token of the budget, so that a prompt never stalls a decode.
            num_tokens = min(sequence.num_uncomputed_tokens, budget - num_later)
            if self._reserve(sequence, sequence.num_computed_tokens + num_tokens, entries):
                entries.append(ScheduledSequence.of(sequence, num_tokens))
                budget -= num_tokens
        return entries

    def _reserve(self, sequence: Sequence, num_tokens: int, entries: Items[ScheduledSequence]) -> bool:
        """Give a running Sequence its Blocks, preempting Sequences that are not among the Step's `entries`.

        Returns False if it was preempted itself.
        """
        missing = -(-num_tokens // self._block_size) - len(sequence.block_table)
        if missing <= 0:
            return True
        while missing > self.block_pool.num_free_blocks:
            has_share = {entry.sequence for entry in entries}
            # The first running Sequence is never preempted.
            others = [one for one in self._running[1:] if not (one in has_share or one.is_in_step)]
            if not others:  # it waits for another Step to end
                return False
            victim = least(others)
            self._preempt(victim)
            if victim is sequence:
                return False
        sequence.block_table.extend(self.block_pool.allocate(missing))
        return True

    def _leave_queue(self, sequence: Sequence) -> None:
        self._num_waiting -= 1
        self._num_waiting_behind_gate -= sequence.may_be_held
        if not sequence.is_urgent:
            self._admission.left_queue(sequence)

    def _preempt(self, sequence: Sequence) -> None:
        self._stop(sequence)
        self._enqueue(sequence)
        self.stats.preemptions += 1

    def _stop(self, sequence: Sequence) -> None:
        self._running.remove(sequence)
        self._admission.stopped(sequence)
        if sequence.is_in_step:
            self._leaving.append(sequence)
        else:
            self._release(sequence)

    def _release(self, sequence: Sequence) -> None:
        self.block_pool.release(sequence.block_table)
        self._prefixes.stopped(sequence)
        sequence.block_table = []
        sequence.num_computed_tokens = 0
        if sequence.row is not None:
            self._free_rows.append(sequence.row)
            sequence.row = None

    def _admit_waiting(self, entries: list[ScheduledSequence], size: tuple[int, int]) -> None:
        """Admit waiting Sequences while budget, rows and Blocks last, and append their parts of the Step."""
        most, budget = size[0], size[1] - sum(entry.num_tokens for entry in entries)
        most_running, num_held = self.limits.most_running, 0
        while (
            budget
            and num_held < self.limits.max_num_sequences
            and ((self._has_row(most_running) and len(entries) < most) or self._admission.may_displace())
        ):
            sequence = self._admission.pop()
            if sequence is None:
                self._is_settled = not num_held
                break
            cached = self._prefixes.cached(sequence)
            # If another Sequence computes this prefix now, wait a Step and share it. A Sequence that was just
            # preempted may have a token on the device that the host does not know yet: wait for it too.
            is_computed = self._prefixes.is_computed(sequence, cached)
            is_held = sequence.may_be_held and not self._gate.admits(sequence, self._running)
            if is_computed or sequence.num_pending_tokens or is_held:
                self._admission.put_back(sequence, is_refused=False)
                num_held += 1
                continue
            num_given = self._make_room(sequence, cached, entries)
            if num_given is None:
                self._admission.put_back(sequence, is_refused=True)
                continue
            self._admit(sequence, cached)
            budget += num_given
            num_tokens = min(sequence.num_uncomputed_tokens, budget)
            entries.append(ScheduledSequence.of(sequence, num_tokens))
            budget -= num_tokens
        self._gate.end_pass(is_cut=not budget or num_held > 0)

    def _make_room(
        self, sequence: Sequence, cached: list[int], entries: list[ScheduledSequence]
    ) -> int | None:
        """Find a row and Blocks, preempting Sequences that must give way.

        Returns how many tokens of the Step the preempted ones had; None if there is no room.
        """
        num_given = 0
        must_exchange = self._admission.must_exchange
        while must_exchange or not (
            self._has_row(self.limits.most_running)
            and (not sequence.may_be_held or self._gate.has_room(sequence, self._running))
            and self._admission.has_room(sequence, self._num_needed(sequence, cached), self._running)
        ):
            num_urgent = sum(running.is_urgent for running in self._running)
            # As with urgent ones, the oldest Sequence is never displaced.
            others = [one for one in self._running[num_urgent + 1 :] if not one.is_in_step]
            victim = self._admission.displaced_by(sequence, others)
            if victim is None:
                return None
            self._preempt(victim)
            must_exchange = False
            self._admission.made_way(sequence)
            num_given += sum(entry.num_tokens for entry in entries if entry.sequence is victim)
            entries[:] = [entry for entry in entries if entry.sequence is not victim]
        return num_given

    def _has_row(self, most: int) -> bool:
        return bool(self._free_rows) and len(self._running) < min(most, self._gate.max_running)

    def _admit_urgent(self, num_steps: int) -> None:
        """Admit urgent Sequences in order of arrival, preempting others where there is no room."""
        self._must_make_room = False
        num_urgent = sum(sequence.is_urgent for sequence in self._running)
        self.limits.start_step(num_steps, is_urgent=bool(num_urgent or self._urgent))
        while self._urgent and num_urgent < self._max_urgent and not self._turns.must_yield:
            sequence = self._urgent[0][1]
            if sequence.state is not SequenceState.WAITING:
                heappop(self._urgent)
                continue
            cached = self._prefixes.cached(sequence)
            missing = self._num_needed(sequence, cached) - self.block_pool.num_free_blocks
            if self._has_row(self.limits.most_rows) and missing <= 0:
                heappop(self._urgent)
                self._admit(sequence, cached)
                num_urgent += 1
                continue
            victims = self._running[num_urgent + 1 :]  # not the oldest of the others
            num_own = sum(self.block_pool.count_unshared(victim.block_table) for victim in victims)
            if not victims or num_own < missing:
                self._must_make_room = True
                return
            self._preempt(least(victims))

    def _num_needed(self, sequence: Sequence, cached: list[int]) -> int:
        """Return how many free Blocks an admission takes, including Blocks of `cached` that are free."""
        num_fresh = -(-len(sequence.token_ids) // self._block_size) - len(cached)
        return num_fresh + sum(map(self.block_pool.is_free, cached))

    def _admit(self, sequence: Sequence, cached: list[int]) -> None:
        self.block_pool.share(cached)
        num_blocks = -(-len(sequence.token_ids) // self._block_size)
        sequence.block_table = cached + self.block_pool.allocate(num_blocks - len(cached))
        sequence.num_computed_tokens = len(cached) * self._block_size
        if sequence.num_cached_tokens is None:
            sequence.started_at = time.monotonic()
            sequence.num_cached_tokens = sequence.num_computed_tokens
            self.stats.cached_tokens += sequence.num_cached_tokens
            self.stats.queried_tokens += sequence.num_prompt_tokens if self.block_pool.is_caching else 0
        else:
            self.stats.resumed_tokens += sequence.num_computed_tokens
        self._prefixes.admitted(sequence, cached)
        sequence.row = self._free_rows.pop()
        sequence.state = SequenceState.RUNNING
        self._admission.started(sequence)
        self._leave_queue(sequence)
        if sequence.may_be_held:
            self._gate.started(sequence)
        insort(self._running, sequence, key=order)
