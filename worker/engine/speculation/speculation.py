"""Decides in each Step how many guessed tokens to verify for which Sequences.

A Step with n tokens more takes longer and may yield more: the expected number of right guesses is known from
earlier ones, the time from earlier Steps of that size. The guesses with the best yield of tokens per second
are verified, none if that is best, as in a full batch where the products already use all of the processor.
To look for guesses takes time too, and an expectation may be wrong. So both are paid from what guesses were
measured to save, and from a small share of the time: where they save nothing, few Steps look.
"""

import math
import sys
import time
from collections import Counter
from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import dataclass, replace
from itertools import compress, count, repeat

from worker.engine.requests.stats import EngineStats
from worker.engine.scheduling.block_pool import BlockPool
from worker.engine.scheduling.plan import ScheduledSequence, StepPlan
from worker.engine.sequences.next_token import NextToken
from worker.engine.sequences.sequence import Sequence, SequenceState
from worker.engine.speculation.acceptance import AcceptanceRates
from worker.engine.speculation.allowed import may_guess, only_allowed
from worker.engine.speculation.proposer import DRAFT, MAX_GUESSES, GuessedTokens, Proposer
from worker.engine.speculation.step_times import StepTimes
from worker.engine.speculation.waiting import Waiting

MAX_GUESSES_OF_ALL = 128  # but at least FEW of each
FEW = 2
# After so many Steps without a guess, a few of the best ones are tried, and the other way round: what was
# measured long ago says little. A Step without guesses may cost so large a share of what guesses save.
TRY_EVERY, TRIED = 128, 3
PLAIN_EVERY, PLAIN_COST = (4, 64), 0.02
PAUSE_STEPS = 64  # without guesses after a Step with guesses ran out of memory
# The share of the time that guesses may cost; more only where they have saved it. In Steps: what a batch of
# half the size begins with (PROBED Sequences or fewer: the most), the most kept of savings, and of losses.
LOST = 0.005
START_STEPS, CREDIT_STEPS, DEBT_STEPS = 1.0, 4.0, 1.0
PROBED = 8  # Sequences that are looked for at least; for more, with what is kept beyond START_STEPS
FADE = 0.1  # the share of the latest look in the mean cost of a look
FEW_RIGHT = 8.0  # right tokens
# A Step counts as no longer than so many times the usual one: the rest is what other programs do.
LONGEST = 2.0


@dataclass(frozen=True, slots=True)
class _Offer:
    """A guess for one Sequence, with each token's probability that it and all before it are right."""

    place: int  # of the Sequence's entry in the plan
    guess: GuessedTokens
    shares: list[float]


@dataclass(slots=True)
class _Pending:
    """Sums over the Steps with guesses since the last one without."""

    seconds: float = 0.0
    plain: float = 0.0  # seconds of the same Steps without guesses
    num_sequences: int = 0
    num_guessed: int = 0
    num_right: int = 0
    num_shortening: float = 0.0  # right tokens that make the work end earlier

    def saved(self, plain: float) -> float:
        """Return the seconds that guesses have saved if these Steps took `plain` without them.

        A right token saves its row in a later Step, which costs what a guess does; only one that makes the
        work end earlier saves also its share of what a Step costs whatever is in it.
        """
        extra = self.seconds - plain
        share = plain / self.num_sequences
        row = min(extra / max(self.num_guessed, 1), share)
        return self.num_right * row + self.num_shortening * (share - row) - extra


class Speculation:
    """Adds guesses to the plans of decode Steps, and learns from what becomes of them."""

    def __init__(
        self,
        proposers: Items[Proposer],
        block_pool: BlockPool,
        stats: EngineStats,
        *,
        block_size: int,
        clock: Callable[[], float] = time.thread_time,
        waiting: Waiting | None = None,
    ) -> None:
        """Guess after every Step; with `waiting`, only after those whose tokens it says to wait for."""
        self.times = StepTimes()
        self.rates = AcceptanceRates()
        self._proposers = proposers
        self._block_pool = block_pool
        self._stats = stats
        self._block_size = block_size
        self._clock = clock  # of this thread's processor time, which other programs do not lengthen
        self._open: list[tuple[Sequence, GuessedTokens]] = []  # what the Step that runs verifies
        self._num_plain = 0  # decode Steps in a row without a guess, of those where there might be one
        self._num_guessing = 0  # Steps in a row with guesses
        self._plain_every = PLAIN_EVERY[0]
        self._pending = _Pending()
        self._others_wait = False
        self._num_paused = 0
        self._balance = 0.0  # seconds that guesses may cost: those that they have saved, and a share of all
        self._look_seconds = 0.0  # of one Sequence
        self._least_looked = sys.maxsize  # a Step of no more tokens begins anew
        self._waiting = waiting
        self._plan: StepPlan | None = None  # of the Step that runs, if it could have guesses

    def extend(self, plan: StepPlan, max_tokens: int, *, others_wait: bool = False) -> StepPlan:
        """Return the plan with guesses, if they are expected to pay, and Blocks allocated for them.

        `max_tokens` is the Step's limit; `others_wait` for the place of a Sequence that ends. Takes free
        Blocks only, so it preempts nothing.
        """
        if not self._proposers:
            return plan
        self._open, self._plan = [], None
        self._others_wait = others_wait
        if not _is_decode(plan) or (self._waiting is not None and not self._waiting.wants(plan)):
            return plan
        room = max_tokens - len(plan.entries)
        if room > 0 and self._is_time(len(plan.entries)):
            began = self._clock()
            plan = self._extended(plan, room)
            self._balance -= self._clock() - began
        self._plan = plan
        return plan

    def waits_for(self, plan: StepPlan) -> bool:
        """Return whether the tokens of a Step on a GPU, which was started, are to be waited for."""
        return self._waiting is not None and self._waiting.wants(plan)

    def rest(self) -> None:
        """Record that there is no work."""
        if self._waiting is not None:
            self._waiting.rest()

    def took(
        self,
        plan: StepPlan,
        seconds: float,
        sequences: Items[Sequence],
        tokens: Items[Items[NextToken]],
    ) -> None:
        """Learn from a Step: how long it took, and which guesses the tokens of `sequences` confirm."""
        num_chosen = sum(map(len, tokens))
        if self._waiting is not None:
            self._waiting.took(plan, num_chosen)
        if plan is not self._plan:
            return
        self._charge(plan, seconds, num_chosen)
        if not self._open:
            return
        began = self._clock()
        chosen = dict(zip(sequences, tokens, strict=True))
        for sequence, guess in self._open:
            right = guess.right([token.token_id for token in chosen[sequence]])
            self.rates.add(sequence, guess, right)
            for counter, is_counted in (("guessed", repeat(True)), ("right", right)):
                for source, number in Counter(
                    source for source, _ in compress(guess.kinds, is_counted)
                ).items():
                    name = f"{source}_{counter}_tokens"
                    setattr(self._stats, name, getattr(self._stats, name) + number)
            sequence.num_guessed_tokens += len(right)
            sequence.num_right_tokens += sum(right)
        self._open = []
        self._balance -= self._clock() - began

    def ended(self, sequences: Items[Sequence]) -> None:
        """Let the proposers learn from those of these Sequences that have ended."""
        for sequence in sequences:
            if sequence.state is SequenceState.FINISHED and may_guess(sequence):
                for proposer in self._proposers:
                    proposer.ended(sequence)

    def pause(self) -> None:
        """Guess nothing for some Steps: one with guesses ran out of memory."""
        self._open = []
        self._num_paused = PAUSE_STEPS

    def _extended(self, plan: StepPlan, room: int) -> StepPlan:
        num_tokens = len(plan.entries)
        counts = self._choose(num_tokens, self._offers(plan, room), room)
        self._least_looked = num_tokens // 2
        if not counts:
            self._num_guessing = 0
            self._num_plain = 0 if self._num_plain >= TRY_EVERY else self._num_plain + 1
            return plan
        self._num_plain = 0
        self._num_guessing += 1
        entries = list(plan.entries)
        for offer, wanted in counts:
            sequence = entries[offer.place].sequence
            guess = offer.guess.first(self._reserve(sequence, wanted))
            entries[offer.place] = _with_guess(entries[offer.place], guess)
            if guess.token_ids:
                self._open.append((sequence, guess))
        return replace(plan, entries=tuple(entries))

    def _charge(self, plan: StepPlan, seconds: float, num_chosen: int) -> None:
        """Count a decode Step that chose so many tokens.

        What guesses have saved is known at the next Step without any, which shows what the machine's Steps
        take now. Steps before them would not do: one guesses on because they were slow.
        """
        times, pending = self.times, self._pending
        if self._open or pending.seconds:
            usual = times.seconds(plan.num_tokens) or seconds
            counted = min(seconds, LONGEST * usual)
            if self._open:
                num_sequences = len(plan.entries)
                num_right = num_chosen - num_sequences
                pending.seconds += counted
                pending.plain += times.seconds(num_sequences) or usual
                pending.num_sequences += num_sequences
                pending.num_guessed += plan.num_guesses
                pending.num_right += num_right
                pending.num_shortening += num_right * (1.0 if self._others_wait else _evenness(plan))
            else:
                saved = pending.saved(pending.plain * counted / usual)
                self._balance += saved
                least, most = PLAIN_EVERY
                self._plain_every = min(max(least, int(saved / pending.seconds / PLAIN_COST)), most)
                self._pending = _Pending()
        times.add(plan.num_tokens, seconds)
        balance = max(self._balance, -DEBT_STEPS * seconds) + LOST * seconds
        self._balance = min(balance, CREDIT_STEPS * seconds)

    def _is_time(self, num_tokens: int) -> bool:
        """Return whether the best guess imaginable would pay in a decode Step of this size."""
        if self._num_paused:
            self._num_paused -= 1
            return False
        if self._balance < 0 and num_tokens > self._least_looked:
            return False
        without, with_one = self.times.seconds(num_tokens), self.times.seconds(num_tokens + 1)
        if without is None or with_one is None or self._num_guessing >= self._plain_every:
            self._num_guessing = 0
            return False
        if num_tokens <= self._least_looked:
            self._balance = (CREDIT_STEPS if num_tokens <= PROBED else START_STEPS) * without
            self._least_looked = num_tokens // 2
        if (num_tokens + self.rates.best) * without > num_tokens * with_one:
            return True
        self._num_plain += 1
        return self._num_plain >= TRY_EVERY

    def _offers(self, plan: StepPlan, room: int) -> list[_Offer]:
        """Return at most one offer for each Sequence: of the proposer from which most is expected."""
        began = self._clock()
        asked = [place for place, entry in enumerate(plan.entries) if may_guess(entry.sequence)]
        asked = asked[: self._most_looks(plan.num_tokens)]
        offers: dict[int, _Offer] = {}
        for proposer in self._proposers:
            places = [
                place
                for place in asked
                if place not in offers
                or offers[place].shares[0] < self._expected(proposer, plan.entries[place].sequence, 1)[0]
            ]
            sequences = [plan.entries[place].sequence for place in places]
            most = self._worthwhile(plan.num_tokens, sequences, proposer, room)
            if not most:
                continue
            limits = [min(most, one.max_length - len(one.token_ids) - 1) for one in sequences]
            if proposer.seconds_per_pass is not None:
                limits = [self._reserve(one, limit) for one, limit in zip(sequences, limits, strict=True)]
            found = proposer.propose(sequences, limits)
            for place, sequence, guess in zip(places, sequences, found, strict=True):
                kept = only_allowed(sequence, guess)
                kept, shares = self._by_shares(sequence, kept)
                if sum(shares) > (sum(offers[place].shares) if place in offers else 0.0):
                    offers[place] = _Offer(place, kept, shares)
        if asked:
            each = (self._clock() - began) / len(asked)
            self._look_seconds += FADE * (each - self._look_seconds)
        return list(offers.values())

    def _by_shares(self, sequence: Sequence, guess: GuessedTokens) -> tuple[GuessedTokens, list[float]]:
        """Return a guess with its likeliest tokens first, and their probabilities.

        So its first tokens are the best tree of so many: a token is never likelier than the one it follows.
        """
        shares = self.rates.along(sequence, guess)
        if not guess.parents:
            return guess, shares
        order = sorted(range(len(shares)), key=lambda place: (-shares[place], place))
        return guess.only(order), [shares[place] for place in order]

    def _most_looks(self, num_tokens: int) -> int:
        """Return for how many Sequences the balance pays."""
        beyond = self._balance - START_STEPS * (self.times.seconds(num_tokens) or 0.0)
        return PROBED + max(0, int(beyond / max(self._look_seconds, 1e-7)))

    def _worthwhile(self, num_tokens: int, sequences: Items[Sequence], proposer: Proposer, room: int) -> int:
        """Return how many tokens a proposer should guess for each of these Sequences."""
        most = min(room, MAX_GUESSES, max(FEW, MAX_GUESSES_OF_ALL // num_tokens))
        each = proposer.seconds_per_pass
        if each is None:
            return most
        if self._num_plain >= TRY_EVERY:
            return min(most, TRIED)
        shares = [self._expected(proposer, sequence, most) for sequence in sequences]
        best_count, expected = 0, float(num_tokens)
        best_rate = expected / (self.times.seconds(num_tokens) or 1.0)
        for depth, gains in enumerate(zip(*shares, strict=True), 1):
            expected += sum(gains)
            passes = each * (depth if proposer.shares is None else 1)
            taken = (self.times.seconds(num_tokens + depth * len(sequences)) or 1.0) + passes
            if expected / taken > best_rate:
                best_count, best_rate = depth, expected / taken
        return best_count

    def _expected(self, proposer: Proposer, sequence: Sequence, most: int) -> tuple[float, ...]:
        """Return how likely each token of a guess is right with all before it, before asking for it."""
        if proposer.shares is not None:
            return proposer.shares[:most]
        rate = self.rates.of(sequence, DRAFT)
        return tuple(rate**depth for depth in range(1, most + 1))

    def _choose(self, num_tokens: int, offers: Items[_Offer], room: int) -> list[tuple[_Offer, int]]:
        """Return the offers to take, with how many of their tokens: those of the most tokens per second."""
        gains = sorted(
            (
                (share, -depth, index)
                for index, offer in enumerate(offers)
                for depth, share in enumerate(offer.shares)
            ),
            reverse=True,
        )[:room]
        best_count, expected = 0, float(num_tokens)
        best_rate = expected / (self.times.seconds(num_tokens) or 1.0)
        for number, (gain, _, _) in zip(count(1), gains):
            expected += gain
            seconds = self.times.seconds(num_tokens + number) or 1.0
            if expected / seconds > best_rate:
                best_count, best_rate = number, expected / seconds
        if not best_count and self._num_plain >= TRY_EVERY:
            best_count = TRIED
        taken = [0] * len(offers)
        for _, _, index in gains[:best_count]:
            taken[index] += 1
        return [(offer, number) for offer, number in zip(offers, taken, strict=True) if number]

    def _reserve(self, sequence: Sequence, num_guesses: int) -> int:
        """Return for how many guesses the Sequence has Blocks, after it was given free ones."""
        end = len(sequence.token_ids)
        missing = -(-(end + num_guesses) // self._block_size) - len(sequence.block_table)
        if missing > self._block_pool.num_free_blocks:
            return len(sequence.block_table) * self._block_size - end
        if missing > 0:
            sequence.block_table.extend(self._block_pool.allocate(missing))
        return num_guesses


def _is_decode(plan: StepPlan) -> bool:
    """Return whether each Sequence runs its newest token only, and that token is on the host."""
    return plan.num_tokens == len(plan.entries) > 0 and all(
        entry.is_sampled and not entry.sequence.num_pending_tokens for entry in plan.entries
    )


def _with_guess(entry: ScheduledSequence, guess: GuessedTokens) -> ScheduledSequence:
    num_tokens = entry.num_tokens + len(guess.token_ids)
    return entry._replace(num_tokens=num_tokens, guesses=guess.token_ids, parents=guess.parents)


def _evenness(plan: StepPlan) -> float:
    """Return the right guesses of the Sequence that has the fewest by their mean: the last to end counts.

    While there are few, it lies between 1 / n for n Sequences, as where chance deals them out, and 1.
    """
    numbers = [entry.sequence.num_right_tokens for entry in plan.entries]
    return (min(numbers) + FEW_RIGHT / math.sqrt(len(numbers))) / (sum(numbers) / len(numbers) + FEW_RIGHT)
