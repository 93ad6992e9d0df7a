"""Tests and intervals for a look at the end: exact McNemar, and a seeded bootstrap of a mean."""

import random
from collections.abc import Sequence
from math import exp, lgamma, log
from statistics import fmean

RESAMPLES = 1000
MAX_GROUPS = 2000


def mcnemar(num_better: int, num_worse: int) -> float:
    """Return the two-sided p-value that pairs which differ are as often better as worse.

    The exact test of McNemar (1947): a binomial test of the pairs that differ.
    """
    differing, fewer = num_better + num_worse, min(num_better, num_worse)
    if not differing:
        return 1.0
    most = lgamma(differing + 1) - differing * log(2)
    tail = sum(exp(most - lgamma(k + 1) - lgamma(differing - k + 1)) for k in range(fewer + 1))
    return min(1.0, 2 * tail)


def bootstrap_mean(values: Sequence[float], *, seed: int = 0, alpha: float = 0.05) -> tuple[float, float]:
    """Return the percentile bootstrap interval of the mean of independent values; the same for a same seed.

    Over 2,000 values, means of groups are drawn in their place.

    Raises:
        ValueError: there are no values.

    """
    if not values:
        raise ValueError("a mean needs values")
    source = random.Random(seed)  # noqa: S311 - no secret
    size = -(-len(values) // MAX_GROUPS)
    if size > 1:
        shuffled = source.sample(list(values), len(values))
        whole = len(values) - len(values) % size
        values = [fmean(shuffled[start : start + size]) for start in range(0, whole, size)]
    means = sorted(fmean(source.choices(values, k=len(values))) for _ in range(RESAMPLES))
    cut = round(RESAMPLES * alpha / 2)
    return means[cut], means[-1 - cut]
