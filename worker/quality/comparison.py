"""Compares configuration B with A by their outputs on the same requests, and says which one is better."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from worker.quality.expected import Expected
from worker.quality.fixed import mcnemar
from worker.quality.sequential import ALPHA, interval, sample_size

RESOLUTION = 0.05


class Verdict(StrEnum):
    """What a comparison has shown of B, beside A."""

    BETTER = "better"  # its share of right outputs is larger
    SAME = "same"  # it is smaller by less than the allowed loss, or larger
    WORSE = "worse"  # it is smaller by more than the allowed loss
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class Pair:
    """One request under A and B. A score is from 0, wrong, to 1, right; None: nothing says what is right."""

    agree: bool  # their outputs are the same
    score_a: float | None = None
    score_b: float | None = None


@dataclass(slots=True)
class Tally:
    """Sums over pairs, from which a comparison follows; it can be stored and continued."""

    num_lines: int = 0
    num_agreeing: int = 0
    total_a: float = 0.0  # scores
    total_b: float = 0.0
    differences: Counter[float] = field(default_factory=Counter)  # how often B's score minus A's had a value

    def add(self, pair: Pair, times: int = 1) -> None:
        """Add a pair, or several that are alike."""
        self.num_lines += times
        self.num_agreeing += pair.agree * times
        if pair.score_a is not None and pair.score_b is not None:
            self.total_a += pair.score_a * times
            self.total_b += pair.score_b * times
            self.differences[pair.score_b - pair.score_a] += times


@dataclass(frozen=True, slots=True)
class Comparison:
    """The quality of B beside that of A. Shares, differences and intervals are from 0 to 1, or -1 to 1."""

    num_lines: int
    agreement: float | None  # share of equal outputs; None: no lines
    agreement_interval: tuple[float, float]
    num_scored: int  # lines of which something says what is right
    num_better: int  # B scored higher
    num_worse: int
    quality_a: float | None  # mean score; None: no scored lines
    quality_b: float | None
    difference: float | None  # B's minus A's
    difference_interval: tuple[float, float]  # holds however often one looks
    p_value: float | None  # of McNemar's exact test, which holds for one look at the end only
    verdict: Verdict
    more_lines: int | None  # scored lines until the verdict, if the loss is as large as the resolution
    allowed_loss: float
    resolution: float
    alpha: float


def compare(
    pairs: Iterable[Pair] | Tally,
    *,
    allowed_loss: float = 0.0,
    resolution: float = RESOLUTION,
    alpha: float = ALPHA,
) -> Comparison:
    """Compare B with A by pairs of the same requests, or by their tally.

    The verdict may be asked for after every line: it is wrong with probability `alpha` at most in all looks
    together. `resolution` is the loss beyond the allowed one that `more_lines` is for.
    """
    tally = pairs if isinstance(pairs, Tally) else _sum(pairs)
    scored = sum(tally.differences.values())
    low, high = interval(tally.differences, alpha)
    better = sum(count for value, count in tally.differences.items() if value > 0)
    worse = sum(count for value, count in tally.differences.items() if value < 0)
    agreeing = {1.0: tally.num_agreeing, -1.0: tally.num_lines - tally.num_agreeing}
    verdict = _judge(low, high, allowed_loss)
    more = None
    if verdict is Verdict.UNDECIDED:
        # Half a pair more that differs: a few that agree do not prove that all will.
        discordance = (better + worse + 0.5) / (scored + 1)
        size = sample_size(resolution, discordance, allowed_loss=allowed_loss, alpha=alpha)
        more = max(0, size - scored)
    return Comparison(
        num_lines=tally.num_lines,
        agreement=tally.num_agreeing / tally.num_lines if tally.num_lines else None,
        agreement_interval=_shares(interval(agreeing, alpha)),
        num_scored=scored,
        num_better=better,
        num_worse=worse,
        quality_a=tally.total_a / scored if scored else None,
        quality_b=tally.total_b / scored if scored else None,
        difference=(tally.total_b - tally.total_a) / scored if scored else None,
        difference_interval=(low, high),
        p_value=mcnemar(better, worse) if scored else None,
        verdict=verdict,
        more_lines=more,
        allowed_loss=allowed_loss,
        resolution=resolution,
        alpha=alpha,
    )


def to_pair(a: str | None, b: str | None, expected: Expected | None = None) -> Pair:
    """Return the pair of two outputs; None is the output of a request that failed, which is never right."""
    agree = a is not None and a == b
    if expected is None:
        return Pair(agree)
    return Pair(agree, *(float(one is not None and expected.is_met(one)) for one in (a, b)))


def compare_outputs(
    a: Mapping[str, str | None],
    b: Mapping[str, str | None],
    expected: Mapping[str, Expected],
    *,
    allowed_loss: float = 0.0,
    resolution: float = RESOLUTION,
    alpha: float = ALPHA,
) -> Comparison:
    """Compare outputs by the names of their requests; a name that only one side has is left out."""
    pairs = [to_pair(a[name], b[name], expected.get(name)) for name in a if name in b]
    return compare(pairs, allowed_loss=allowed_loss, resolution=resolution, alpha=alpha)


def compare_scores(
    a: Sequence[float],
    b: Sequence[float],
    *,
    allowed_loss: float = 0.0,
    resolution: float = RESOLUTION,
    alpha: float = ALPHA,
) -> Comparison:
    """Compare scores from 0 to 1 of the same requests, in the same order.

    Raises:
        ValueError: the two have not the same length, or a score is out of range.

    """
    if not all(0 <= score <= 1 for scores in (a, b) for score in scores):
        raise ValueError("a score must be from 0 to 1")
    pairs = [Pair(one == other, one, other) for one, other in zip(a, b, strict=True)]
    return compare(pairs, allowed_loss=allowed_loss, resolution=resolution, alpha=alpha)


def _sum(pairs: Iterable[Pair]) -> Tally:
    tally = Tally()
    for pair in pairs:
        tally.add(pair)
    return tally


def _judge(low: float, high: float, allowed_loss: float) -> Verdict:
    if low > 0:
        return Verdict.BETTER
    if high < -allowed_loss:
        return Verdict.WORSE
    return Verdict.SAME if low > -allowed_loss else Verdict.UNDECIDED


def _shares(bounds: tuple[float, float]) -> tuple[float, float]:
    return (bounds[0] + 1) / 2, (bounds[1] + 1) / 2
