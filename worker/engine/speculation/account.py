"""Keeps for each proposer what its guesses may cost: what they have saved, and a small share of the time."""

import math
from collections import defaultdict
from dataclasses import dataclass, field

from worker.engine.scheduling.plan import StepPlan
from worker.engine.speculation.proposer import Proposer

# The share of the time that the guesses of a proposer may cost; more only where they have saved it.
LOST = 0.005
# In Steps: what a proposer begins with in a batch of half the size; the most it keeps of savings, with which
# it begins in a batch of PROBED Sequences or fewer if it needs no passes; the most it owes for wrong guesses.
START_STEPS, CREDIT_STEPS, DEBT_STEPS = 1.0, 4.0, 1.0
LEFT = 1 / 32  # the share of the Steps to come that it begins with at most: in few, little can be saved
PROBED = 8  # Sequences that are looked for at least; for more, with what is kept beyond START_STEPS
FEW_RIGHT = 8.0  # right tokens
FADE = 0.1  # the share of the latest look in the mean cost of a look


@dataclass(slots=True, eq=False)
class Account:
    """What a proposer may still cost, in seconds; below 0 it is not asked."""

    proposer: Proposer
    balance: float = 0.0
    _look_seconds: float = 0.0  # of one Sequence

    def begin(self, plan: StepPlan, step_seconds: float) -> None:
        """Begin anew, for a batch of this Step's Sequences, whose Steps take so long."""
        is_cheap = self.proposer.seconds_per_pass is None
        most = CREDIT_STEPS if is_cheap and len(plan.entries) <= PROBED else START_STEPS
        num_steps = max(entry.sequence.num_tokens_left for entry in plan.entries)
        self.balance = step_seconds * min(most, LEFT * num_steps)

    def most_looks(self, step_seconds: float) -> int:
        """Return for how many Sequences the balance pays."""
        beyond = self.balance - START_STEPS * step_seconds
        return PROBED + max(0, int(beyond / max(self._look_seconds, 1e-7)))

    def looked(self, seconds: float, num_sequences: int) -> None:
        """Pay for having looked for guesses for so many Sequences."""
        self.balance -= seconds
        if num_sequences:
            self._look_seconds += FADE * (seconds / num_sequences - self._look_seconds)

    def saved(self, seconds: float, step_seconds: float) -> None:
        """Count what its guesses have saved, or lost: chance has its part in a loss, so a Step's at most."""
        self.balance = max(self.balance + seconds, min(self.balance, -DEBT_STEPS * step_seconds))

    def steps(self, count: int, seconds: float) -> None:
        """Count Steps of so many seconds: it earns a share of them, and what was long ago is forgotten.

        Looks are owed in full where they are passes: the first one of a Sequence may cost many Steps.
        """
        if self.proposer.seconds_per_pass is None:
            self.balance = max(self.balance, -DEBT_STEPS * seconds)
        self.balance = min(self.balance + count * LOST * seconds, CREDIT_STEPS * seconds)


@dataclass(slots=True)
class _Guessed:
    """Numbers of a proposer's tokens."""

    num_tokens: int = 0
    num_right: int = 0
    num_shortening: float = 0.0  # right ones that make the work end earlier


@dataclass(slots=True)
class OpenSavings:
    """Sums over the Steps with guesses since the last one without: what these saved is not known yet."""

    seconds: float = 0.0
    plain: float = 0.0  # seconds of the same Steps without guesses
    num_sequences: int = 0
    guessed: defaultdict[Account, _Guessed] = field(default_factory=lambda: defaultdict(_Guessed))

    def saved(self, plain: float) -> dict[Account, float]:
        """Return the seconds that each proposer's guesses have saved if these Steps took `plain` without any.

        A right token saves its row in a later Step, which costs what a guess does; only one that makes the
        work end earlier saves also its share of what a Step costs whatever is in it.
        """
        each = (self.seconds - plain) / max(sum(one.num_tokens for one in self.guessed.values()), 1)
        share = plain / self.num_sequences
        row = min(each, share)
        return {
            account: one.num_right * row + one.num_shortening * (share - row) - one.num_tokens * each
            for account, one in self.guessed.items()
        }


def evenness(plan: StepPlan) -> float:
    """Return the right guesses of the Sequence that has the fewest by their mean: the last to end counts.

    While there are few, it lies between 1 / n for n Sequences, as where chance deals them out, and 1.
    """
    numbers = [entry.sequence.num_right_tokens for entry in plan.entries]
    return (min(numbers) + FEW_RIGHT / math.sqrt(len(numbers))) / (sum(numbers) / len(numbers) + FEW_RIGHT)
