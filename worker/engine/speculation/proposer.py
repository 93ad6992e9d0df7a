"""Defines what guesses tokens, and a guess."""

from collections.abc import Hashable
from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import Protocol

from worker.engine.sequences.sequence import Sequence


@dataclass(frozen=True, slots=True)
class GuessedTokens:
    """What may follow the known tokens of a Sequence.

    Its tokens are certain, that is, of probability 1 for the proposer. `kind` names how it was found: guesses
    of one kind are right about equally often.
    """

    token_ids: tuple[int, ...]
    kind: Hashable = None


NO_GUESS = GuessedTokens(())


class Proposer(Protocol):
    """Guesses the next tokens of Sequences."""

    name: str  # as in the counters of EngineStats

    @property
    def seconds_per_pass(self) -> float | None:
        """Time of one more token for every Sequence, 0 while unknown; None: next to nothing."""

    def propose(self, sequences: Items[Sequence], limits: Items[int]) -> list[GuessedTokens]:
        """Return a guess for each Sequence, of at most so many tokens; an empty one where nothing is known.

        All tokens of the Sequences are on the host. They hold Blocks for their tokens and, unless
        `seconds_per_pass` is None, for as many guesses.
        """

    def ended(self, sequence: Sequence) -> None:
        """Learn from the output of a Sequence that has ended, and forget what was kept for it."""
