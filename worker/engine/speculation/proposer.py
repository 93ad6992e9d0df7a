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
MAX_GUESSES = 12  # tokens of one Sequence in a Step


@dataclass(frozen=True, slots=True)
class GuessedTokens:
    """What may follow the known tokens of a Sequence, with the kind of each token: a chain, or a tree.

    The tokens are certain, that is, of probability 1 for the proposer.
    """

    token_ids: tuple[int, ...]
    kinds: tuple[Kind, ...]
    # The place of the token that each one follows, before its own; -1: the last known token; empty: a chain.
    # Those that follow the same one are different tokens.
    parents: tuple[int, ...] = ()
    # How likely each one is if those before it are right, as far as the proposer knows; empty: it does not.
    sure: tuple[float, ...] = ()

    def first(self, count: int) -> "GuessedTokens":
        """Return the first `count` tokens of it."""
        return self if count >= len(self.token_ids) else self.only(range(count))

    def only(self, places: Items[int]) -> "GuessedTokens":
        """Return these tokens of it, in this order, which has each one after the one that it follows."""
        parents: tuple[int, ...] = ()
        if self.parents:
            new = {old: place for place, old in enumerate(places)} | {-1: -1}
            parents = tuple(new[self.parents[old]] for old in places)
            if all(parent == place - 1 for place, parent in enumerate(parents)):
                parents = ()
        return GuessedTokens(
            tuple(self.token_ids[place] for place in places),
            tuple(self.kinds[place] for place in places),
            parents,
            tuple(self.sure[place] for place in places) if self.sure else (),
        )

    def right(self, token_ids: Items[int | None]) -> list[bool]:
        """Return which tokens of it are those that were chosen, in this order, after the known ones."""
        depths: list[int] = []  # -1: not right
        for place, token_id in enumerate(self.token_ids):
            parent = self.parents[place] if self.parents else place - 1
            depth = 0 if parent < 0 else depths[parent] + 1 if depths[parent] >= 0 else len(token_ids)
            depths.append(depth if depth < len(token_ids) and token_ids[depth] == token_id else -1)
        return [depth >= 0 for depth in depths]


NO_GUESS = GuessedTokens((), ())


class Proposer(Protocol):
    """Guesses the next tokens of Sequences."""

    @property
    def seconds_per_pass(self) -> float | None:
        """Time of one more token for every Sequence, 0 while unknown; None: next to nothing."""

    @property
    def shares(self) -> tuple[float, ...] | None:
        """How likely each token is right with those before it, where one pass guesses them all; else None."""

    def propose(self, sequences: Items[Sequence], limits: Items[int]) -> list[GuessedTokens]:
        """Return a guess for each Sequence, of at most so many tokens; an empty one where nothing is known.

        All tokens of the Sequences are on the host. They hold Blocks for their tokens and, unless
        `seconds_per_pass` is None, for as many guesses.
        """

    def ended(self, sequence: Sequence) -> None:
        """Learn from the output of a Sequence that has ended, and forget what was kept for it."""
