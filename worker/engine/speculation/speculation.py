"""Decides in each Step how many guessed tokens to verify for which Sequences.

A Step with n tokens more takes longer and may yield more: the expected number of right guesses is known from
earlier ones, the time from earlier Steps of that size. The guesses with the best yield of tokens per second
are verified, none if that is best, as in a full batch where the products already use all of the processor.
"""

from collections.abc import Sequence as Items
from dataclasses import dataclass, replace
from itertools import count

from worker.engine.requests.stats import EngineStats
from worker.engine.scheduling.block_pool import BlockPool
from worker.engine.scheduling.plan import ScheduledSequence, StepPlan
from worker.engine.sequences.next_token import NextToken
from worker.engine.sequences.sequence import Sequence, SequenceState
from worker.engine.speculation.acceptance import AcceptanceRates
from worker.engine.speculation.proposer import GuessedTokens, Proposer
from worker.engine.speculation.step_times import StepTimes
from worker.values.sampling import Optimization

MAX_GUESSES = 12  # tokens of one Sequence in a Step
# After so many Steps without a guess, a few of the best ones are tried, and the other way round: what was
# measured long ago says little.
TRY_EVERY, TRIED = 128, 3
PLAIN_EVERY = 64
PAUSE_STEPS = 64  # without guesses after a Step with guesses ran out of memory
# To look for guesses takes time. After more than MANY Sequences had none worth it, some Steps do not look.
MANY, REST_STEPS = 16, 15


@dataclass(frozen=True, slots=True)
class _Offer:
    """The tokens that a proposer guesses for one Sequence, with the probability that one of them is right."""

    place: int  # of the Sequence's entry in the plan
    guess: GuessedTokens
    proposer: Proposer
    probability: float


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
        self._is_decode = False  # the Step that runs

    def extend(self, plan: StepPlan, max_tokens: int) -> StepPlan:
        """Return the plan with guesses, if they are expected to pay, and Blocks allocated for them.

        `max_tokens` is the Step's limit. Takes free Blocks only, so it preempts nothing.
        """
        self._open = []
        self._is_decode = _is_decode(plan)
        room = max_tokens - len(plan.entries)
        if room <= 0 or not self._is_decode or not self._is_time(plan.num_tokens):
            return plan
        offers = self._offers(plan, room)
        counts = self._choose(plan.num_tokens, offers, room)
        if not counts:
            self._num_guessing = 0
            self._num_plain = 0 if self._num_plain >= TRY_EVERY else self._num_plain + 1
            if len(plan.entries) > MANY:
                self._num_paused = REST_STEPS
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
        if not self._open:
            return
        chosen = dict(zip(sequences, tokens, strict=True))
        for sequence, offer, num_guessed in self._open:
            num_right = len(chosen[sequence]) - 1
            self.rates.add(sequence, _kind(offer), num_guessed, num_right)
            for counter, number in (("guessed", num_guessed), ("right", num_right)):
                name = f"{offer.proposer.name}_{counter}_tokens"
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
        without, with_one = self.times.seconds(num_tokens), self.times.seconds(num_tokens + 1)
        if without is None or with_one is None or self._num_guessing >= PLAIN_EVERY:
            self._num_guessing = 0
            return False
        if (num_tokens + self.rates.best) * without > num_tokens * with_one:
            return True
        self._num_plain += 1
        return self._num_plain >= TRY_EVERY

    def _offers(self, plan: StepPlan, room: int) -> list[_Offer]:
        """Return at most one offer for each Sequence, from the first proposer that knows something."""
        places = [place for place, entry in enumerate(plan.entries) if _may_guess(entry.sequence)]
        offers: list[_Offer] = []
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
                if allowed.token_ids:
                    probability = self.rates.of(sequence, (proposer.name, guess.kind))
                    offers.append(_Offer(place, allowed, proposer, probability))
                else:
                    left.append(place)
            places = left
        return offers

    def _worthwhile(self, num_tokens: int, sequences: Items[Sequence], proposer: Proposer, room: int) -> int:
        """Return how many tokens a proposer should guess for each of these Sequences."""
        most = min(room, MAX_GUESSES)
        each = proposer.seconds_per_pass
        if each is None:
            return most
        if self._num_plain >= TRY_EVERY:
            return min(most, TRIED)
        rates = [self.rates.of(sequence, (proposer.name, None)) for sequence in sequences]
        best_count, expected = 0, float(num_tokens)
        best_rate = expected / (self.times.seconds(num_tokens) or 1.0)
        for depth in range(1, most + 1):
            expected += sum(rate**depth for rate in rates)
            taken = (self.times.seconds(num_tokens + depth * len(sequences)) or 1.0) + depth * each
            if expected / taken > best_rate:
                best_count, best_rate = depth, expected / taken
        return best_count

    def _choose(self, num_tokens: int, offers: Items[_Offer], room: int) -> list[tuple[_Offer, int]]:
        """Return the offers to take, with how many of their tokens: those of the most tokens per second."""
        gains = sorted(
            (
                (offer.probability**depth, -depth, index)
                for index, offer in enumerate(offers)
                for depth in range(1, len(offer.guess.token_ids) + 1)
            ),
            reverse=True,
        )[:room]
        best_count, expected = 0, float(num_tokens)
        best_rate = expected / (self.times.seconds(num_tokens) or 1.0)
        for number, (gain, _, _) in zip(count(1), gains):
            expected += gain
            rate = expected / (self.times.seconds(num_tokens + number) or 1.0)
            if rate > best_rate:
                best_count, best_rate = number, rate
        if not best_count and self._num_plain >= TRY_EVERY:
            best_count = TRIED
        taken = [0] * len(offers)
        for _, _, index in gains[:best_count]:
            taken[index] += 1
        return [(offer, number) for offer, number in zip(offers, taken, strict=True) if number]

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
    return replace(guess, token_ids=token_ids)


def _kind(offer: _Offer) -> tuple[str, object]:
    return offer.proposer.name, offer.guess.kind
