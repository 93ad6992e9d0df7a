"""Chooses which running Sequences share the next Step. Knows no tensors."""

from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import dataclass

from worker.engine.scheduling.plan import ScheduledSequence
from worker.engine.sequences.sequence import Sequence

PATIENCE_STEPS = 32  # Steps in a row that may hold only urgent work while others wait
# Small batches get their own Step only if it takes at most 1 / SHORTER of the time of a Step for all. If not,
# one is tried again after TRY_AGAIN occasions.
SHORTER = 3
TRY_AGAIN = 256
SMOOTHING = 0.2


@dataclass(frozen=True, slots=True)
class Turn:
    """Selects the running Sequences that may have tokens of a Step."""

    is_urgent: bool = False  # only urgent Sequences
    alone: Sequence | None = None  # only this Sequence
    few: frozenset[Sequence] = frozenset()  # only these; empty: all

    @property
    def is_for_all(self) -> bool:
        """True if the turn includes all Sequences except those that must run alone."""
        return not (self.is_urgent or self.few) and self.alone is None

    def includes(self, sequence: Sequence) -> bool:
        """Return whether a running Sequence may have tokens of the Step."""
        if self.alone is not None:
            return sequence is self.alone
        if self.few:
            return sequence in self.few
        return not sequence.is_alone and (sequence.is_urgent or not self.is_urgent)


class Turns:
    """Alternates Steps for all running Sequences with Steps for some; at least every other Step is for all.

    - Urgent: a Step that computes an urgent prompt leaves out all other work, which would delay the first
      token.
    - Alone: Sequences that must run alone take every other Step, one after another.
    - Few: where a Step takes longer the more Sequences it holds, as on a CPU, small batches beside a large
      one get extra Steps, for at most a quarter of the time.
    """

    def __init__(self) -> None:
        self._was_for_all = False
        self._last_alone = 0  # arrival
        self._num_without_others = 0  # Steps in a row while others waited
        # Smoothed seconds of Steps for few and of other Steps; None before the first.
        self._few_seconds: float | None = None
        self._other_seconds: float | None = None
        self._num_left_out = 0  # Steps for few that were skipped as too long

    @property
    def must_yield(self) -> bool:
        """True if no urgent Sequence may be admitted until a Step holds one that is not urgent."""
        return self._num_without_others >= PATIENCE_STEPS

    def took(self, seconds: float, *, is_for_few: bool) -> None:
        """Record how long a Step took."""
        known = self._few_seconds if is_for_few else self._other_seconds
        smoothed = seconds if known is None else known + SMOOTHING * (seconds - known)
        if is_for_few:
            self._few_seconds = smoothed
        else:
            self._other_seconds = smoothed

    def next(self, running: Items[Sequence], few: Callable[[], frozenset[Sequence]]) -> Turn:
        """Return the turn of the next Step; `few` returns the running Sequences of small batches."""
        turn = Turn()
        alone = [sequence for sequence in running if sequence.is_alone]
        if self._was_for_all or len(alone) == len(running):
            if alone:
                turn = Turn(alone=self._next_alone(alone))
            elif any(sequence.is_urgent and not sequence.num_output_tokens for sequence in running):
                turn = Turn(is_urgent=True)
            elif (found := few()) and self._is_short():
                turn = Turn(few=found)
        self._was_for_all = turn.is_for_all
        return turn

    def note(self, entries: Items[ScheduledSequence], *, is_waiting: bool) -> None:
        """Record a planned Step's entries, and whether Sequences wait that are not urgent."""
        has_others = any(not entry.sequence.is_urgent for entry in entries)
        if has_others or not is_waiting:
            self._num_without_others = 0
        else:
            self._num_without_others += 1

    def _is_short(self) -> bool:
        """Return whether a Step for few is short enough beside one for all, as far as measured."""
        if self._other_seconds is None:
            return False
        if self._few_seconds is None or SHORTER * self._few_seconds <= self._other_seconds:
            return True
        self._num_left_out = (self._num_left_out + 1) % TRY_AGAIN
        return not self._num_left_out

    def _next_alone(self, alone: Items[Sequence]) -> Sequence:
        later = [sequence for sequence in alone if sequence.arrival > self._last_alone]
        chosen = min(later or alone, key=lambda sequence: sequence.arrival)
        self._last_alone = chosen.arrival
        return chosen
