"""Defines the interface of an admission policy."""

from collections.abc import Sequence as Items
from typing import Protocol

from worker.engine.sequences.sequence import Sequence

WATERMARK = 0.01  # share of the pool that an admission leaves free for running Sequences to grow


class AdmissionPolicy(Protocol):
    """Keeps the waiting Sequences, chooses the next one, and decides whether it has room.

    A Sequence that has ended may stay queued; `pop` drops it. No call may take time in proportion to the
    number of waiting Sequences.
    """

    def add(self, sequence: Sequence) -> None:
        """Queue a new or preempted Sequence."""

    def start_step(self) -> None:
        """Begin a Step: Sequences put back in the last one may be tried again."""

    def pop(self) -> Sequence | None:
        """Remove and return the next Sequence to try; None: no other is worth trying in this Step."""

    def put_back(self, sequence: Sequence, *, is_refused: bool) -> None:
        """Queue the Sequence popped last again, not admitted; `is_refused`: it found no room."""

    def has_room(self, sequence: Sequence, num_needed: int, running: Items[Sequence]) -> bool:
        """Return whether a Sequence may take `num_needed` free Blocks beside the running ones."""

    def look_again(self) -> None:
        """Recheck the running Sequences, because one has stopped within this Step."""

    def learn(self, sequence: Sequence, *, is_cut: bool) -> None:
        """Learn the output length of an ended Sequence; `is_cut`: its limit ended it."""
