"""Learns how often guesses are right: of a kind, of a job and of a Sequence."""

from collections import OrderedDict
from collections.abc import Hashable
from collections.abc import Sequence as Items
from dataclasses import dataclass

from worker.engine.sequences.sequence import Sequence
from worker.engine.speculation.proposer import Kind

FIRST = 0.5  # of a kind that was never tried
WEIGHT = 4.0  # tries that an estimate gets from the wider one before it
REMEMBERED = 64.0  # tries; older ones fade
MAX_RATES = 1 << 14


@dataclass(slots=True)
class _Rate:
    right: float = 0.0
    tried: float = 0.0

    def add(self, is_right: bool) -> None:
        fade = min(1.0, REMEMBERED / (self.tried + 1))
        self.right = fade * (self.right + is_right)
        self.tried = fade * (self.tried + 1)

    def estimate(self, wider: float) -> float:
        return (self.right + WEIGHT * wider) / (self.tried + WEIGHT)


class AcceptanceRates:
    """The share of guessed tokens that are right, among those before which all are right."""

    def __init__(self) -> None:
        self._kinds: dict[Kind, _Rate] = {}
        # Of a kind in a job, and of a kind in a Sequence; the least recently used are forgotten.
        self._narrow: OrderedDict[Hashable, _Rate] = OrderedDict()

    @property
    def best(self) -> float:
        """The largest share of any kind; FIRST before any try."""
        return max((rate.estimate(FIRST) for rate in self._kinds.values()), default=FIRST)

    def of(self, sequence: Sequence, kind: Kind) -> float:
        """Return the probability that a guessed token of this Sequence is right, if those before it are."""
        share = FIRST
        for rate in (self._kinds.get(kind), *map(self._narrow.get, _keys(sequence, kind))):
            if rate is not None:
                share = rate.estimate(share)
        return share

    def along(self, sequence: Sequence, kinds: Items[Kind]) -> list[float]:
        """Return the probability of each of these tokens that it and all before it are right."""
        known: dict[Kind, float] = {}
        all_right = 1.0
        shares: list[float] = []
        for kind in kinds:
            if kind not in known:
                known[kind] = self.of(sequence, kind)
            all_right *= known[kind]
            shares.append(all_right)
        return shares

    def add(self, sequence: Sequence, kinds: Items[Kind], num_right: int) -> None:
        """Count a guess: its tokens after the first wrong one were not tried."""
        for place, kind in enumerate(kinds[: num_right + 1]):
            is_right = place < num_right
            self._kinds.setdefault(kind, _Rate()).add(is_right)
            for key in _keys(sequence, kind):
                self._narrow.setdefault(key, _Rate()).add(is_right)
                self._narrow.move_to_end(key)
        while len(self._narrow) > MAX_RATES:
            self._narrow.popitem(last=False)


def _keys(sequence: Sequence, kind: Kind) -> tuple[Hashable, Hashable]:
    return ("job", sequence.job, kind), ("sequence", sequence.arrival, kind)
