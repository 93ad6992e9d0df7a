"""Which running Sequences share the next Step, when some of them are urgent, or few. Knows no tensors."""

from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import dataclass

from worker.engine.scheduling.plan import ScheduledSequence
from worker.engine.sequences.sequence import Sequence

PATIENCE_STEPS = 32  # that nothing but urgent work may fill before it lets others in
# A Step of few Sequences must be so many times as short as one of all; where it is not, it is tried again
# after so many that it would have followed.
SHORTER = 3
TRY_AGAIN = 256
SMOOTHING = 0.2


@dataclass(frozen=True, slots=True)
class Turn:
    """Who may have tokens of a Step."""

    is_urgent: bool = False  # the urgent ones only
    alone: Sequence | None = None  # this one only
    few: frozenset[Sequence] = frozenset()  # these only; empty: all

    @property
    def is_for_all(self) -> bool:
        """Whether nobody is left out, but those who want to be alone."""
        return not (self.is_urgent or self.few) and self.alone is None

    def includes(self, sequence: Sequence) -> bool:
        """Whether a running Sequence has a share."""
        if self.alone is not None:
            return sequence is self.alone
        if self.few:
            return sequence in self.few
        return not sequence.is_alone and (sequence.is_urgent or not self.is_urgent)


class Turns:
    """Every other Step at least is for all.

    A Step that computes an urgent prompt leaves out whatever is not urgent, so that the first token comes
    soon; it would be as long as all that runs otherwise. A Sequence that wants to be alone gets every other
    Step, in turn with others of its kind. And where a Step takes the longer the more Sequences are in it, as
    on a CPU, batches that have few beside a large one get Steps in between: at most a quarter of the time.
    """

    def __init__(self) -> None:
        self._was_for_all = False
        self._last_alone = 0  # arrival
        self._num_without_others = 0  # Steps in a row while others waited
        # What Steps for few and other Steps take, smoothed; None before the first.
        self._few_seconds: float | None = None
        self._other_seconds: float | None = None
        self._num_left_out = 0  # Steps for few that would have taken too long, in a row

    @property
    def must_yield(self) -> bool:
        """Whether no urgent Sequence may be admitted before another one."""
        return self._num_without_others >= PATIENCE_STEPS

    def took(self, seconds: float, *, is_for_few: bool) -> None:
        """Note how long a Step took."""
        known = self._few_seconds if is_for_few else self._other_seconds
        smoothed = seconds if known is None else known + SMOOTHING * (seconds - known)
        if is_for_few:
            self._few_seconds = smoothed
        else:
            self._other_seconds = smoothed

    def next(self, running: Items[Sequence], few: Callable[[], frozenset[Sequence]]) -> Turn:
        """Return whose turn the next Step is; `few` are those of batches that have few running."""
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
        """Record what a Step holds, and whether Sequences wait that are not urgent."""
        has_others = any(not entry.sequence.is_urgent for entry in entries)
        if has_others or not is_waiting:
            self._num_without_others = 0
        else:
            self._num_without_others += 1

    def _is_short(self) -> bool:
        """Whether a Step for few costs little beside one for all, as far as is known."""
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
