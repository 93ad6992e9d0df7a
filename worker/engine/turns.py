"""Which running Sequences share the next Step, when some of them are urgent. Knows no tensors."""

from collections.abc import Sequence as Items
from dataclasses import dataclass

from worker.engine.sequence import Sequence
from worker.engine.step import ScheduledSequence

PATIENCE_STEPS = 32  # that nothing but urgent work may fill before it lets others in


@dataclass(frozen=True, slots=True)
class Turn:
    """Who may have tokens of a Step."""

    is_urgent: bool = False  # the urgent ones only
    alone: Sequence | None = None  # this one only

    @property
    def is_for_all(self) -> bool:
        """Whether nobody is left out, but those who want to be alone."""
        return not self.is_urgent and self.alone is None

    def includes(self, sequence: Sequence) -> bool:
        """Whether a running Sequence has a share."""
        if self.alone is not None:
            return sequence is self.alone
        return not sequence.is_alone and (sequence.is_urgent or not self.is_urgent)


class Turns:
    """Every other Step at least is for all.

    A Step that computes an urgent prompt leaves out whatever is not urgent, so that the first token comes
    soon; it would be as long as all that runs otherwise. A Sequence that wants to be alone gets every other
    Step, in turn with others of its kind.
    """

    def __init__(self) -> None:
        self._was_for_all = False
        self._last_alone = 0  # arrival
        self._num_without_others = 0  # Steps in a row while others waited

    @property
    def must_yield(self) -> bool:
        """Whether no urgent Sequence may be admitted before another one."""
        return self._num_without_others >= PATIENCE_STEPS

    def next(self, running: Items[Sequence]) -> Turn:
        """Return whose turn the next Step is."""
        turn = Turn()
        alone = [sequence for sequence in running if sequence.is_alone]
        if self._was_for_all or len(alone) == len(running):
            if alone:
                turn = Turn(alone=self._next_alone(alone))
            elif any(sequence.is_urgent and not sequence.num_output_tokens for sequence in running):
                turn = Turn(is_urgent=True)
        self._was_for_all = turn.is_for_all
        return turn

    def note(self, entries: Items[ScheduledSequence], *, is_waiting: bool) -> None:
        """Record what a Step holds, and whether Sequences wait that are not urgent."""
        has_others = any(not entry.sequence.is_urgent for entry in entries)
        if has_others or not is_waiting:
            self._num_without_others = 0
        else:
            self._num_without_others += 1

    def _next_alone(self, alone: Items[Sequence]) -> Sequence:
        later = [sequence for sequence in alone if sequence.arrival > self._last_alone]
        chosen = min(later or alone, key=lambda sequence: sequence.arrival)
        self._last_alone = chosen.arrival
        return chosen
