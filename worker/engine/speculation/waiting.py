"""Decides when a GPU's Step is waited for, so that there are tokens to guess from before the next one starts.

Steps that start ahead keep a GPU busy; those that wait may verify guesses. Which of them yield more depends
on the machine, the model and the text, so windows of Steps of either kind are timed and compared.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from worker.engine.scheduling.plan import StepPlan
from worker.engine.speculation.allowed import may_guess

WINDOW = 32  # decode Steps
# Windows of the better kind before the other one is tried: at first as many as Sequences, within these
# bounds; after a try in vain as many as make it cost this share of the time. A try is two windows: in the
# first, guesses find out what they cost.
FIRST_GAP, LAST_GAP = 2, 256
TRY, COST = 2, 0.005
MARGIN = 1.02  # by which the other kind has to be better
SKIPPED = 2  # Steps after a change, which are of both kinds


@dataclass(slots=True)
class _Size:
    """What is known of decode Steps of about as many Sequences."""

    first_gap: int
    gap: int
    waits: bool = False  # the better kind
    is_trying: bool = False
    rate: float = 0.0  # of the better kind: tokens of a Sequence per second
    num_windows: int = 0  # since the better kind or a try of the other one began
    num_steps: int = 0  # of this window
    num_tokens: float = 0.0  # of a Sequence
    seconds: float = 0.0

    def ended(self) -> None:
        """Close a window, and choose the kind of the next one."""
        rate = self.num_tokens / self.seconds
        self.num_steps, self.num_tokens, self.seconds = 0, 0.0, 0.0
        self.num_windows += 1
        if not self.is_trying:
            self.rate = rate
            if self.num_windows >= self.gap:
                self.is_trying, self.num_windows = True, 0
        elif self.num_windows >= TRY:
            self.is_trying, self.num_windows = False, 0
            if rate > MARGIN * self.rate:
                self.waits, self.rate, self.gap = not self.waits, rate, self.first_gap
            else:
                lost = TRY * (1 - rate / self.rate)  # windows' worth of tokens
                self.gap = min(max(2 * self.gap, int(lost / COST)), LAST_GAP)


class Waiting:
    """Times decode Steps from one end to the next, by their number of Sequences in powers of two."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._sizes: dict[int, _Size] = {}
        self._before: tuple[_Size, bool] | None = None  # size and kind of the Step that ended last
        self._ended_at = 0.0
        self._num_skipped = 0

    def wants(self, plan: StepPlan) -> bool:
        """Return whether the tokens of a Step that was started are to be waited for."""
        if not plan.is_decode or not any(may_guess(entry.sequence) for entry in plan.entries):
            return False
        if plan.needs_host:
            return True
        size = self._size(len(plan.entries))
        return size.waits != size.is_trying

    def took(self, plan: StepPlan, num_chosen: int) -> None:
        """Count a Step that has ended and chose so many tokens."""
        now = self._clock()
        seconds, self._ended_at = now - self._ended_at, now
        if not plan.is_decode or plan.needs_host:
            self._before = None
            return
        size = self._size(len(plan.entries))
        kind = size, size.waits != size.is_trying
        if self._before is None or self._before[0] is not size or self._before[1] != kind[1]:
            self._before, self._num_skipped = kind, 0
            return
        self._num_skipped += 1
        if self._num_skipped < SKIPPED:
            return
        size.num_steps += 1
        size.num_tokens += num_chosen / len(plan.entries)
        size.seconds += seconds
        if size.num_steps == WINDOW and size.seconds > 0:
            size.ended()

    def rest(self) -> None:
        """Record that there is no work: the time until the next Step does not count."""
        self._before = None

    def _size(self, num_sequences: int) -> _Size:
        place = num_sequences.bit_length()
        if place not in self._sizes:
            gap = min(max(FIRST_GAP, num_sequences), LAST_GAP)
            self._sizes[place] = _Size(gap, gap)
        return self._sizes[place]
