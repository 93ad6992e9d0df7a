"""Decides in each Step how many guessed tokens to verify for which Sequences.

A Step with n tokens more takes longer and may yield more: the expected number of right guesses is known from
earlier ones, the time from earlier Steps of that size. The guesses with the best yield of tokens per second
are verified, none if that is best, as in a full batch where the products already use all of the processor.
To look for guesses takes time too, and an expectation may be wrong. So both are paid from what the guesses of
each proposer were measured to save, and from a small share of the time: one that saves nothing is rarely
asked.
"""

import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass, replace

from worker.engine.requests.stats import EngineStats
from worker.engine.scheduling.block_pool import BlockPool
from worker.engine.scheduling.plan import ScheduledSequence, StepPlan
from worker.engine.sequences.next_token import NextToken
from worker.engine.sequences.sequence import Sequence, SequenceState
from worker.engine.speculation.acceptance import AcceptanceRates
from worker.engine.speculation.account import Account, OpenSavings, evenness
from worker.engine.speculation.allowed import may_guess, only_allowed, takes_guesses
from worker.engine.speculation.proposer import DRAFT, MAX_GUESSES, GuessedTokens, Proposer
from worker.engine.speculation.step_times import FIXED_TOKENS, FIXED_TOKENS_OF_GPU, StepTimes
from worker.engine.speculation.waiting import Waiting

MAX_GUESSES_OF_ALL = 128  # but at least FEW of each
FEW = 2
# After so many Steps without a guess, a few of the best ones are tried, and the other way round: what was
# measured long ago says little. A Step without guesses may cost so large a share of what guesses save.
TRY_EVERY, TRIED = 128, 3
PLAIN_EVERY, PLAIN_COST = (4, 64), 0.02
RESTS = 7  # Steps after one in which no guess would pay: to ask costs time, too
PAUSE_STEPS = 64  # without guesses after a Step with guesses ran out of memory
# A Step counts as no longer than so many times the usual one: the rest is what other programs do.
LONGEST = 2.0


@dataclass(frozen=True, slots=True)
class _Offer:
    """A guess for one Sequence, with each token's probability that it and all before it are right."""

    place: int  # of the Sequence's entry in the plan
    account: Account  # of the proposer
    guess: GuessedTokens
    shares: list[float]


class Speculation:
    """Adds guesses to the plans of decode Steps, and learns from what becomes of them."""

    def __init__(
        self,
        proposers: Items[Proposer],
        block_pool: BlockPool,
        stats: EngineStats,
        *,
        block_size: int,
        clock: Callable[[], float] | None = None,
        waiting: Waiting | None = None,
    ) -> None:
        """Guess after every Step; with `waiting`, only after those whose tokens it says to wait for."""
        self.times = StepTimes(FIXED_TOKENS if waiting is None else FIXED_TOKENS_OF_GPU)
        self.rates = AcceptanceRates()
        self.use(proposers)
        self._block_pool = block_pool
        self._stats = stats
        self._block_size = block_size
        # Of this thread's processor time, which other programs do not lengthen, unless it waits for a GPU.
        self._clock = clock or (time.thread_time if waiting is None else time.perf_counter)
        self._open: list[tuple[Sequence, GuessedTokens, Account]] = []  # what the Step that runs verifies
        self._num_plain = 0  # decode Steps in a row without a guess, of those where there might be one
        self._num_guessing = 0  # Steps in a row with guesses
        self._plain_every = PLAIN_EVERY[0]
        self._savings = OpenSavings()
        self._others_wait = False
        self._num_paused = 0
        self._num_resting = 0  # decode Steps to come, in which it is not asked whether to guess
        self._num_rested = 0  # of these, those since the last one that was counted
        self._least_looked = sys.maxsize  # a Step of no more tokens begins anew
        self._waiting = waiting
        self._plan: StepPlan | None = None  # of the Step that runs, if it could have guesses

    def use(self, proposers: Items[Proposer]) -> None:
        """Guess with these from now on; of them, the earlier one is asked first."""
        self._accounts = [Account(one) for one in proposers]

    @property
    def proposers(self) -> list[Proposer]:
        """What it guesses with, in this order."""
        return [account.proposer for account in self._accounts]

    def extend(self, plan: StepPlan, max_tokens: int, *, others_wait: bool = False) -> StepPlan:
        """Return the plan with guesses, if they are expected to pay, and Blocks allocated for them.

        `max_tokens` is the Step's limit; `others_wait` for the place of a Sequence that ends. Takes free
        Blocks only, so it preempts nothing.
        """
        if not self._accounts:
            return plan
        self._open, self._plan = [], None
        self._others_wait = others_wait
        if self._num_resting and plan.num_tokens == len(plan.entries) > self._least_looked:
            self._num_resting -= 1
            self._num_rested += 1
            return plan
        if not _is_known(plan) or (self._waiting is not None and not self._waiting.wants(plan)):
            return plan
        room = max_tokens - len(plan.entries)
        if room > 0 and self._is_time(plan):
            plan = self._extended(plan, room)
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
        if self._waiting is not None:
            self._waiting.took(plan, sum(map(len, tokens)))
        if plan is not self._plan:
            return
        if not self._open:
            self._charge(plan, seconds, [])
            return
        began = self._clock()
        chosen = dict(zip(sequences, tokens, strict=True))
        rights = [
            guess.right([token.token_id for token in chosen[sequence]]) for sequence, guess, _ in self._open
        ]
        self._charge(plan, seconds, rights)
        counted = Counter[str]()
        for (sequence, guess, _), right in zip(self._open, rights, strict=True):
            self.rates.add(sequence, guess, right)
            for (source, _), is_right in zip(guess.kinds, right, strict=True):
                counted[f"{source}_guessed_tokens"] += 1
                counted[f"{source}_right_tokens"] += is_right
            sequence.num_guessed_tokens += len(right)
            sequence.num_right_tokens += sum(right)
        for name, number in counted.items():
            setattr(self._stats, name, getattr(self._stats, name) + number)
        self._pay(began, {account for _, _, account in self._open})
        self._open = []

    def ended(self, sequences: Items[Sequence]) -> None:
        """Let the proposers learn from those of these Sequences that have ended."""
        if not self._accounts:
            return
        for sequence in sequences:
            if sequence.state is SequenceState.FINISHED and may_guess(sequence):
                for account in self._accounts:
                    account.proposer.ended(sequence)

    def pause(self) -> None:
        """Guess nothing for some Steps: one with guesses ran out of memory."""
        self._open = []
        self._num_paused = PAUSE_STEPS

    def _extended(self, plan: StepPlan, room: int) -> StepPlan:
        num_tokens = len(plan.entries)
        able = [account for account in self._accounts if account.balance >= 0]
        offers = self._offers(plan, able, room)
        began = self._clock()
        counts = self._choose(num_tokens, offers, room)
        self._least_looked = num_tokens // 2
        if not counts:
            self._num_guessing = 0
            self._num_plain = 0 if self._num_plain >= TRY_EVERY else self._num_plain + 1
            self._pay(began, able)
            return plan
        self._num_plain = 0
        self._num_guessing += 1
        entries = list(plan.entries)
        for offer, wanted in counts:
            sequence = entries[offer.place].sequence
            guess = offer.guess.first(self._reserve(sequence, wanted))
            entries[offer.place] = _with_guess(entries[offer.place], guess)
            if guess.token_ids:
                self._open.append((sequence, guess, offer.account))
        self._pay(began, {offer.account for offer, _ in counts})
        return replace(plan, entries=tuple(entries))

    def _pay(self, began: float, accounts: Collection[Account]) -> None:
        """Share the time since then among these."""
        each = (self._clock() - began) / len(accounts)
        for account in accounts:
            account.balance -= each

    def _charge(self, plan: StepPlan, seconds: float, rights: Items[Items[bool]]) -> None:
        """Count a decode Step, of whose guesses these tokens were right.

        What guesses have saved is known at the next Step without any, which shows what the machine's Steps
        take now. Steps before them would not do: one guesses on because they were slow.
        """
        times, savings = self.times, self._savings
        if self._open or savings.seconds:
            usual = times.seconds(plan.num_tokens) or seconds
            counted = min(seconds, LONGEST * usual)
            if self._open:
                num_sequences = len(plan.entries)
                savings.seconds += counted
                savings.plain += times.seconds(num_sequences) or usual
                savings.num_sequences += num_sequences
                shortening = 1.0 if self._others_wait else evenness(plan)
                for (_, _, account), right in zip(self._open, rights, strict=True):
                    guessed = savings.guessed[account]
                    guessed.num_tokens += len(right)
                    guessed.num_right += sum(right)
                    guessed.num_shortening += sum(right) * shortening
            else:
                saved = savings.saved(savings.plain * counted / usual)
                for account, its_seconds in saved.items():
                    account.saved(its_seconds, seconds)
                least, most = PLAIN_EVERY
                part = sum(saved.values()) / savings.seconds / PLAIN_COST
                self._plain_every = min(max(least, int(part)), most)
                self._savings = OpenSavings()
                self._num_resting = 0  # what was saved may end a debt
        times.add(plan.num_tokens, seconds)
        for account in self._accounts:
            account.steps(1 + self._num_rested, seconds)
        self._num_rested = 0

    def _is_time(self, plan: StepPlan) -> bool:
        """Return whether the best guess imaginable would pay in this decode Step."""
        num_tokens = len(plan.entries)
        if self._num_paused:
            self._num_paused -= 1
            return False
        if num_tokens > self._least_looked and all(one.balance < 0 for one in self._accounts):
            self._num_resting = RESTS
            return False
        without, with_one = self.times.seconds(num_tokens), self.times.seconds(num_tokens + 1)
        if without is None or with_one is None or self._num_guessing >= self._plain_every:
            self._num_guessing = 0
            return False
        if num_tokens <= self._least_looked:
            for account in self._accounts:
                account.begin(plan, without)
            self._least_looked = num_tokens // 2
        if (num_tokens + self.rates.best) * without > num_tokens * with_one:
            return True
        self._num_resting = RESTS
        self._num_plain += 1 + RESTS
        return self._num_plain >= TRY_EVERY

    def _offers(self, plan: StepPlan, accounts: Items[Account], room: int) -> list[_Offer]:
        """Return at most one offer for each Sequence: of the proposer from which most is expected."""
        num_tokens = plan.num_tokens
        step_seconds = self.times.seconds(num_tokens) or 0.0
        asked = [place for place, entry in enumerate(plan.entries) if takes_guesses(entry.sequence)]
        offers: dict[int, _Offer] = {}
        for account in accounts:
            began, proposer = self._clock(), account.proposer
            places = [
                place
                for place in asked[: account.most_looks(step_seconds)]
                if place not in offers
                or offers[place].shares[0] < self._expected(proposer, plan.entries[place].sequence, 1)[0]
            ]
            if not places:
                continue
            sequences = [plan.entries[place].sequence for place in places]
            most = self._worthwhile(num_tokens, sequences, proposer, room, offers, places)
            if most:
                limits = [min(most, one.num_tokens_left - 1) for one in sequences]
                if proposer.seconds_per_pass is not None:
                    limits = [self._reserve(one, limit) for one, limit in zip(sequences, limits, strict=True)]
                found = proposer.propose(sequences, limits)
                for place, sequence, guess in zip(places, sequences, found, strict=True):
                    kept, shares = self._by_shares(sequence, only_allowed(sequence, guess))
                    if sum(shares) > (sum(offers[place].shares) if place in offers else 0.0):
                        offers[place] = _Offer(place, account, kept, shares)
            account.looked(self._clock() - began, len(sequences))
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

    def _worthwhile(
        self,
        num_tokens: int,
        sequences: Items[Sequence],
        proposer: Proposer,
        room: int,
        offers: Mapping[int, _Offer],
        places: Collection[int],
    ) -> int:
        """Return how many tokens a proposer should guess for each of these Sequences, at these places.

        What is offered for other places is verified beside them; the offers at these are the alternative.
        """
        most = min(room, MAX_GUESSES, max(FEW, MAX_GUESSES_OF_ALL // num_tokens))
        each = proposer.seconds_per_pass
        if each is None:
            return most
        if self._num_plain >= TRY_EVERY:
            return min(most, TRIED)
        _, _, best_rate = self._best(num_tokens, _shares(offers.values()))
        beside = _shares(offer for place, offer in offers.items() if place not in places)
        beside_count, expected, _ = self._best(num_tokens, beside)
        best_count = 0
        shares = [self._expected(proposer, sequence, most) for sequence in sequences]
        for depth, gains in enumerate(zip(*shares, strict=True), 1):
            expected += sum(gains)
            passes = each * (depth if proposer.shares is None else 1)
            size = num_tokens + beside_count + depth * len(sequences)
            taken = (self.times.seconds(size) or 1.0) + passes
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
        best_count, _, _ = self._best(num_tokens, [share for share, _, _ in gains])
        if not best_count and self._num_plain >= TRY_EVERY:
            best_count = TRIED
        taken = [0] * len(offers)
        for _, _, index in gains[:best_count]:
            taken[index] += 1
        return [(offer, number) for offer, number in zip(offers, taken, strict=True) if number]

    def _best(self, num_tokens: int, shares: Items[float]) -> tuple[int, float, float]:
        """Return how many guesses of these probabilities, likeliest first, yield the most tokens per second.

        Beside their number: the expected tokens of such a Step, and of a second.
        """
        times = self.times.onward(num_tokens)
        expected = float(num_tokens)
        best = 0, expected, expected / (next(times) or 1.0)
        for number, (share, seconds) in enumerate(zip(shares, times, strict=False), 1):
            expected += share
            rate = expected / (seconds or 1.0)
            if rate > best[2]:
                best = number, expected, rate
        return best

    def _reserve(self, sequence: Sequence, num_guesses: int) -> int:
        """Return for how many guesses the Sequence has Blocks, after it was given free ones."""
        end = len(sequence.token_ids)
        missing = -(-(end + num_guesses) // self._block_size) - len(sequence.block_table)
        if missing > self._block_pool.num_free_blocks:
            return len(sequence.block_table) * self._block_size - end
        if missing > 0:
            sequence.block_table.extend(self._block_pool.allocate(missing))
        return num_guesses


def _is_known(plan: StepPlan) -> bool:
    """Return whether each Sequence runs its newest token only, and that token is on the host."""
    return not any(entry.sequence.num_pending_tokens for entry in plan.entries) and plan.is_decode


def _shares(offers: Iterable[_Offer]) -> list[float]:
    """Return the probabilities of all tokens of these offers, likeliest first."""
    return sorted((share for offer in offers for share in offer.shares), reverse=True)


def _with_guess(entry: ScheduledSequence, guess: GuessedTokens) -> ScheduledSequence:
    num_tokens = entry.num_tokens + len(guess.token_ids)
    return entry._replace(num_tokens=num_tokens, guesses=guess.token_ids, parents=guess.parents)
