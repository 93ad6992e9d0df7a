"""Decides in each Step how many guessed tokens to verify for which Sequences.

A Step with n tokens more takes longer and may yield more: the expected number of right guesses is known from
earlier ones, the time from earlier Steps of that size. The guesses with the best yield of tokens per second
are verified, none if that is best, as in a full batch where the products already use all of the processor.
To look for guesses takes time too: where that is not made up for, most Steps do not look.
"""

import sys
import time
from collections import Counter
from collections.abc import Sequence as Items
from dataclasses import dataclass, replace
from itertools import count

from worker.engine.requests.stats import EngineStats
from worker.engine.scheduling.block_pool import BlockPool
from worker.engine.scheduling.plan import ScheduledSequence, StepPlan
from worker.engine.sequences.next_token import NextToken
from worker.engine.sequences.sequence import Sequence, SequenceState
from worker.engine.speculation.acceptance import AcceptanceRates
from worker.engine.speculation.proposer import DRAFT, GuessedTokens, Proposer
from worker.engine.speculation.step_times import StepTimes
from worker.values.sampling import Optimization

MAX_GUESSES = 12  # tokens of one Sequence in a Step
MAX_GUESSES_OF_ALL = 128  # but at least FEW of each
FEW = 2
# After so many Steps without a guess, a few of the best ones are tried, and the other way round: what was
# measured long ago says little.
TRY_EVERY, TRIED = 128, 3
PLAIN_EVERY = 64
PAUSE_STEPS = 64  # without guesses after a Step with guesses ran out of memory
# The share of the time that may go by looking for guesses; more only where these make up for it. So many
# Steps pay for a look that was dear, and a gain lasts for looks that take the time of so many Steps.
LOST, DEBT_STEPS, CREDIT_STEPS = 0.01, 32, 1
PROBED = 8  # Sequences


@dataclass(frozen=True, slots=True)
class _Offer:
    """A guess for one Sequence, with each token's probability that it and all before it are right."""

    place: int  # of the Sequence's entry in the plan
    guess: GuessedTokens
    shares: list[float]


class Speculation:
    """Adds guesses to the plans of decode Steps, and learns from what becomes of them."""

    def __init__(
        self, proposers: Items[Proposer], block_pool: BlockPool, stats: EngineStats, *, block_size: int
    ) -> None:
        self.times = StepTimes()
        self.rates = AcceptanceRates()
        self._proposers = proposers
        self._block_pool = block_pool
        self._stats = stats
        self._block_size = block_size
        self._open: list[tuple[Sequence, _Offer, int]] = []  # of the Step that runs: with the tokens verified
        self._num_plain = 0  # decode Steps in a row without a guess, of those where there might be one
        self._num_guessing = 0  # Steps in a row with guesses
        self._num_paused = 0
        self._balance = 0.0  # seconds that guesses have saved, less those of looking for them; within limits
        self._is_probing = False  # looks for a few Sequences only, as the last look cost more than it gained
        self._least_looked = sys.maxsize  # a Step of no more tokens begins anew
        self._is_decode = False  # the Step that runs

    def extend(self, plan: StepPlan, max_tokens: int) -> StepPlan:
        """Return the plan with guesses, if they are expected to pay, and Blocks allocated for them.

        `max_tokens` is the Step's limit. Takes free Blocks only, so it preempts nothing.
        """
        if not self._proposers:
            return plan
        began = time.perf_counter()
        self._open = []
        self._is_decode = _is_decode(plan)
        room = max_tokens - len(plan.entries)
        if room <= 0 or not self._is_decode or not self._is_time(plan.num_tokens):
            return plan
        offers = self._offers(plan, room)
        counts, gain = self._choose(plan.num_tokens, offers, room)
        taken = time.perf_counter() - began
        self._balance += gain - taken
        self._is_probing = gain < taken
        self._least_looked = plan.num_tokens // 2
        if not counts:
            self._num_guessing = 0
            self._num_plain = 0 if self._num_plain >= TRY_EVERY else self._num_plain + 1
            return plan
        self._num_plain = 0
        self._num_guessing += 1
        entries = list(plan.entries)
        for offer, wanted in counts:
            entry = self._with_guesses(entries[offer.place], offer.guess.token_ids[:wanted])
            entries[offer.place] = entry
            if entry.guesses:
                self._open.append((entry.sequence, offer, len(entry.guesses)))
        return replace(plan, entries=tuple(entries))

    def took(
        self,
        plan: StepPlan,
        seconds: float,
        sequences: Items[Sequence],
        tokens: Items[Items[NextToken]],
    ) -> None:
        """Learn from a Step: how long it took, and which guesses the tokens of `sequences` confirm."""
        if self._is_decode:
            self.times.add(plan.num_tokens, seconds)
            least, most = -DEBT_STEPS * LOST * seconds, CREDIT_STEPS * seconds
            self._balance = min(max(self._balance, least) + LOST * seconds, most)
        if not self._open:
            return
        chosen = dict(zip(sequences, tokens, strict=True))
        for sequence, offer, num_guessed in self._open:
            num_right = len(chosen[sequence]) - 1
            kinds = offer.guess.kinds[:num_guessed]
            self.rates.add(sequence, kinds, num_right)
            for counter, counted in (("guessed", kinds), ("right", kinds[:num_right])):
                for source, number in Counter(source for source, _ in counted).items():
                    name = f"{source}_{counter}_tokens"
                    setattr(self._stats, name, getattr(self._stats, name) + number)
            sequence.num_guessed_tokens += num_guessed
            sequence.num_right_tokens += num_right
        self._open = []

    def ended(self, sequences: Items[Sequence]) -> None:
        """Let the proposers learn from those of these Sequences that have ended."""
        for sequence in sequences:
            if sequence.state is SequenceState.FINISHED and _may_guess(sequence):
                for proposer in self._proposers:
                    proposer.ended(sequence)

    def pause(self) -> None:
        """Guess nothing for some Steps: one with guesses ran out of memory."""
        self._open = []
        self._num_paused = PAUSE_STEPS

    def _is_time(self, num_tokens: int) -> bool:
        """Return whether the best guess imaginable would pay in a decode Step of this size."""
        if self._num_paused:
            self._num_paused -= 1
            return False
        if self._balance < 0 and num_tokens > self._least_looked:
            return False
        without, with_one = self.times.seconds(num_tokens), self.times.seconds(num_tokens + 1)
        if without is None or with_one is None or self._num_guessing >= PLAIN_EVERY:
            self._num_guessing = 0
            return False
        if num_tokens <= self._least_looked:
            self._balance, self._is_probing = CREDIT_STEPS * without, True
            self._least_looked = num_tokens // 2
        if (num_tokens + self.rates.best) * without > num_tokens * with_one:
            return True
        self._num_plain += 1
        return self._num_plain >= TRY_EVERY

    def _offers(self, plan: StepPlan, room: int) -> list[_Offer]:
        """Return at most one offer for each Sequence: the lookup's, or the draft's if that is likelier."""
        places = [place for place, entry in enumerate(plan.entries) if _may_guess(entry.sequence)]
        if self._is_probing:
            places = places[:PROBED]
        offers: dict[int, _Offer] = {}
        for proposer in self._proposers:
            sequences = [plan.entries[place].sequence for place in places]
            most = self._worthwhile(plan.num_tokens, sequences, proposer, room)
            if not most:
                continue
            limits = [min(most, one.max_length - len(one.token_ids) - 1) for one in sequences]
            if proposer.seconds_per_pass is not None:
                limits = [self._reserve(one, limit) for one, limit in zip(sequences, limits, strict=True)]
            left: list[int] = []
            found = proposer.propose(sequences, limits)
            for place, sequence, guess in zip(places, sequences, found, strict=True):
                allowed = _allowed(sequence, guess)
                shares = self.rates.along(sequence, allowed.kinds)
                if shares:
                    offers[place] = _Offer(place, allowed, shares)
                if not shares or shares[0] < self.rates.of(sequence, DRAFT):
                    left.append(place)
            places = left
        return list(offers.values())

    def _worthwhile(self, num_tokens: int, sequences: Items[Sequence], proposer: Proposer, room: int) -> int:
        """Return how many tokens a proposer should guess for each of these Sequences."""
        most = min(room, MAX_GUESSES, max(FEW, MAX_GUESSES_OF_ALL // num_tokens))
        each = proposer.seconds_per_pass
        if each is None:
            return most
        if self._num_plain >= TRY_EVERY:
            return min(most, TRIED)
        rates = [self.rates.of(sequence, DRAFT) for sequence in sequences]
        best_count, expected = 0, float(num_tokens)
        best_rate = expected / (self.times.seconds(num_tokens) or 1.0)
        for depth in range(1, most + 1):
            expected += sum(rate**depth for rate in rates)
            taken = (self.times.seconds(num_tokens + depth * len(sequences)) or 1.0) + depth * each
            if expected / taken > best_rate:
                best_count, best_rate = depth, expected / taken
        return best_count

    def _choose(
        self, num_tokens: int, offers: Items[_Offer], room: int
    ) -> tuple[list[tuple[_Offer, int]], float]:
        """Return the offers to take, with how many of their tokens: those of the most tokens per second.

        The second value is the time that this is expected to save.
        """
        gains = sorted(
            (
                (share, -depth, index)
                for index, offer in enumerate(offers)
                for depth, share in enumerate(offer.shares)
            ),
            reverse=True,
        )[:room]
        best_count, expected, saved = 0, float(num_tokens), 0.0
        plain_rate = best_rate = expected / (self.times.seconds(num_tokens) or 1.0)
        for number, (gain, _, _) in zip(count(1), gains):
            expected += gain
            seconds = self.times.seconds(num_tokens + number) or 1.0
            if expected / seconds > best_rate:
                best_count, best_rate = number, expected / seconds
                saved = expected / plain_rate - seconds
        if not best_count and self._num_plain >= TRY_EVERY:
            best_count = TRIED
        taken = [0] * len(offers)
        for _, _, index in gains[:best_count]:
            taken[index] += 1
        counts = [(offer, number) for offer, number in zip(offers, taken, strict=True) if number]
        return counts, saved

    def _with_guesses(self, entry: ScheduledSequence, token_ids: tuple[int, ...]) -> ScheduledSequence:
        """Return the entry with as many of these guesses as there are Blocks for."""
        token_ids = token_ids[: self._reserve(entry.sequence, len(token_ids))]
        return replace(entry, num_tokens=entry.num_tokens + len(token_ids), guesses=token_ids)

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


def _may_guess(sequence: Sequence) -> bool:
    # Thoughts are followed token by token on the host.
    return sequence.params.optimization is Optimization.FULL and sequence.thoughts is None


def _allowed(sequence: Sequence, guess: GuessedTokens) -> GuessedTokens:
    """Return a guess without what its Sequence's end tokens or grammar rule out."""
    token_ids = guess.token_ids
    for index, token_id in enumerate(token_ids):
        if token_id in sequence.stop_token_ids:
            token_ids = token_ids[:index]
            break
    if token_ids and sequence.matcher is not None:
        token_ids = token_ids[: sequence.matcher.num_allowed(token_ids)]
    return guess if len(token_ids) == len(guess.token_ids) else guess.first(len(token_ids))
