"""Defines what guesses tokens, and a guess."""

from collections.abc import Hashable
from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import Protocol

from worker.engine.sequences.sequence import Sequence

# The source of a guessed token, as in the counters of EngineStats, and how it was found: tokens of one kind
# are right about equally often.
Kind = tuple[str, Hashable]
DRAFT: Kind = ("draft", None)


@dataclass(frozen=True, slots=True)
class GuessedTokens:
    """What may follow the known tokens of a Sequence, with the kind of each token.

    The tokens are certain, that is, of probability 1 for the proposer.
    """

    token_ids: tuple[int, ...]
    kinds: tuple[Kind, ...]

    def first(self, count: int) -> "GuessedTokens":
        """Return the first `count` tokens of it."""
        return GuessedTokens(self.token_ids[:count], self.kinds[:count])


NO_GUESS = GuessedTokens((), ())


class Proposer(Protocol):
    """Guesses the next tokens of Sequences."""

    @property
    def seconds_per_pass(self) -> float | None:
        """Time of one more token for every Sequence, 0 while unknown; None: next to nothing."""

    @property
    def shares(self) -> tuple[float, ...] | None:
        """How likely each token is right with all before it, where one pass guesses them all; else None."""

    def propose(self, sequences: Items[Sequence], limits: Items[int]) -> list[GuessedTokens]:
        """Return a guess for each Sequence, of at most so many tokens; an empty one where nothing is known.

        All tokens of the Sequences are on the host. They hold Blocks for their tokens and, unless
        `seconds_per_pass` is None, for as many guesses.
        """

    def ended(self, sequence: Sequence) -> None:
        """Learn from the output of a Sequence that has ended, and forget what was kept for it."""
