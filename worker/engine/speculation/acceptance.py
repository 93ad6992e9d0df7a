"""Learns how often guesses are right: of a kind, of a job and of a Sequence."""

from collections import OrderedDict
from collections.abc import Hashable
from collections.abc import Sequence as Items
from dataclasses import dataclass

from worker.engine.sequences.sequence import Sequence
from worker.engine.speculation.proposer import GuessedTokens, Kind

FIRST = 0.5  # of a kind that was never tried
WEIGHT = 4.0  # tries that an estimate gets from the wider one before it
REMEMBERED = 64.0  # tries; older ones fade
MAX_RATES = 1 << 14


@dataclass(slots=True)
class _Rate:
    right: float = 0.0
    tried: float = 0.0

    def add(self, num_right: int, num_tried: int) -> None:
        fade = min(1.0, REMEMBERED / (self.tried + num_tried))
        self.right = fade * (self.right + num_right)
        self.tried = fade * (self.tried + num_tried)

    def estimate(self, wider: float) -> float:
        return (self.right + WEIGHT * wider) / (self.tried + WEIGHT)


class AcceptanceRates:
    """The share of guessed tokens that are right, among those before which all are right."""

    def __init__(self) -> None:
        self._kinds: dict[Kind, _Rate] = {}
        self._best: float | None = FIRST  # None: to be computed
        # Of a kind in a job, and of a kind in a Sequence; the least recently used are forgotten.
        self._narrow: OrderedDict[Hashable, _Rate] = OrderedDict()

    @property
    def best(self) -> float:
        """The largest share of any kind; FIRST before any try."""
        if self._best is None:
            self._best = max(rate.estimate(FIRST) for rate in self._kinds.values())
        return self._best

    def of(self, sequence: Sequence, kind: Kind, first: float = FIRST) -> float:
        """Return the probability that a guessed token of this Sequence is right, if those before it are.

        `first` is that of a kind that was never tried.
        """
        share = first
        for rate in (self._kinds.get(kind), *map(self._narrow.get, _keys(sequence, kind))):
            if rate is not None:
                share = rate.estimate(share)
        return share

    def along(self, sequence: Sequence, guess: GuessedTokens) -> list[float]:
        """Return the probability of each of these tokens that it and those that it follows are right."""
        known: dict[Kind, float] = {}
        shares: list[float] = []
        for place, kind in enumerate(guess.kinds):
            if kind not in known:
                known[kind] = self.of(sequence, kind, guess.sure[place] if guess.sure else FIRST)
            parent = guess.parents[place] if guess.parents else place - 1
            shares.append(known[kind] * (shares[parent] if parent >= 0 else 1.0))
        return shares

    def add(self, sequence: Sequence, guess: GuessedTokens, right: Items[bool]) -> None:
        """Count a guess and which of its tokens were right: those that follow a wrong one were not tried."""
        tried = dict.fromkeys(guess.kinds, 0)
        were_right = tried.copy()
        for place, (kind, is_right) in enumerate(zip(guess.kinds, right, strict=True)):
            parent = guess.parents[place] if guess.parents else place - 1
            if parent < 0 or right[parent]:
                tried[kind] += 1
                were_right[kind] += is_right
        for kind, num_tried in tried.items():
            if not num_tried:
                continue
            self._kinds.setdefault(kind, _Rate()).add(were_right[kind], num_tried)
            for key in _keys(sequence, kind):
                self._narrow.setdefault(key, _Rate()).add(were_right[kind], num_tried)
                self._narrow.move_to_end(key)
        self._best = None
        while len(self._narrow) > MAX_RATES:
            self._narrow.popitem(last=False)


def _keys(sequence: Sequence, kind: Kind) -> tuple[Hashable, Hashable]:
    return ("job", sequence.job, kind), ("sequence", sequence.arrival, kind)
