"""Compares what two configurations make of the same text, when both are told its own tokens."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, log
from statistics import fmean

from worker.quality.fixed import bootstrap_mean

RUN = 16  # neighbouring tokens, which the bootstrap draws together
LEAST = 1e-9  # probability that all tokens which are not reported have at least


@dataclass(frozen=True, slots=True)
class TextComparison:
    """What configuration B makes of a text, beside A. Intervals hold with 95%, for one look."""

    num_tokens: int
    perplexity_a: float
    perplexity_b: float
    change: float  # of the perplexity, as a share of A's
    change_interval: tuple[float, float]
    divergence: float  # mean Kullback-Leibler divergence of B's next tokens from A's, in nats
    divergence_interval: tuple[float, float]
    agreement: float  # share of tokens of which both find the same one the likeliest


def compare_text(
    a: Sequence[float], b: Sequence[float], divergences: Sequence[float], num_agreeing: int
) -> TextComparison:
    """Compare B with A by the logprobs of a text's tokens, in order, and the divergence at each.

    Raises:
        ValueError: there are no tokens, or the two have not the same number of them.

    """
    losses = [one - other for one, other in zip(a, b, strict=True)]
    low, high = (exp(bound) - 1 for bound in _interval(losses))
    return TextComparison(
        num_tokens=len(a),
        perplexity_a=exp(-fmean(a)),
        perplexity_b=exp(-fmean(b)),
        change=exp(fmean(losses)) - 1,
        change_interval=(low, high),
        divergence=fmean(divergences),
        divergence_interval=_interval(divergences),
        agreement=num_agreeing / len(a),
    )


def top_divergence(a: Mapping[str, float], b: Mapping[str, float]) -> float:
    """Return the divergence of B from A, in nats, by the logprobs that each reports of one position.

    Tokens that only one of them reports count as one with all the others, so this is at most the whole
    divergence.
    """
    shared = a.keys() & b.keys()
    rest_a, rest_b = (max(LEAST, 1 - sum(exp(one[token]) for token in shared)) for one in (a, b))
    found = sum(exp(a[token]) * (a[token] - b[token]) for token in shared)
    return max(0.0, found + rest_a * log(rest_a / rest_b))


def _interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the bootstrap interval of a mean over tokens, of which neighbours are alike."""
    runs = [fmean(values[start : start + RUN]) for start in range(0, len(values), RUN)]
    return bootstrap_mean(runs)
