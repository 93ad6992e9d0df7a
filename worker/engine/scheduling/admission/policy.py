"""What the scheduler asks of an admission policy."""

from collections.abc import Sequence as Items
from typing import Protocol

from worker.engine.sequences.sequence import Sequence

WATERMARK = 0.01  # share of the pool that an admission leaves free for running Sequences to grow


class AdmissionPolicy(Protocol):
    """Keeps the waiting Sequences, chooses among them, and says how much room one must find.

    A Sequence that has ended meanwhile may stay queued; `pop` drops it. No call may cost time in proportion
    to how many wait.
    """

    def add(self, sequence: Sequence) -> None:
        """Queue a Sequence, new or preempted."""

    def start_step(self) -> None:
        """Begin a Step: what the last one put back can be taken again."""

    def pop(self) -> Sequence | None:
        """Take out the next Sequence to try; None: no other is worth trying in this Step."""

    def put_back(self, sequence: Sequence, *, is_refused: bool) -> None:
        """Return what was popped last and not admitted; refused: there was no room for it."""

    def has_room(self, sequence: Sequence, num_needed: int, running: Items[Sequence]) -> bool:
        """Whether a Sequence may take `num_needed` free Blocks beside those that run."""

    def look_again(self) -> None:
        """Forget what was seen of those that run: one of them has stopped within this Step."""

    def learn(self, sequence: Sequence, *, is_cut: bool) -> None:
        """Note how long the output of a Sequence became; cut: it would have gone on."""
