"""Bounds a mean of paired differences at any time, however often one looks.

The bounds are the confidence sequence of the grid Kelly bets (hgKelly) of I. Waudby-Smith and A. Ramdas,
"Estimating means of bounded random variables by betting", Journal of the Royal Statistical Society B, 2024.
For each possible mean, a gambler bets a fixed share of its capital on each difference. If that is the mean,
the average capital of all gamblers is a martingale, which exceeds 1/alpha with probability alpha at most, at
any time (Ville). So all means at which it has exceeded that are excluded.
"""

from collections.abc import Callable, Mapping
from math import ceil, exp, inf, log, log1p, sqrt
from statistics import NormalDist

ALPHA = 0.05
POWER = 0.99
# The bets, as shares of the capital: the small ones find small differences, the large ones large ones early.
BETS = (0.008, 0.016, 0.03, 0.06, 0.12, 0.25, 0.5, 0.9)
STEPS = 40  # of the bisection
LONGEST = 10**9

Counts = Mapping[float, int]  # how often each difference was seen, from -1 to 1


def interval(counts: Counts, alpha: float = ALPHA) -> tuple[float, float]:
    """Return an interval that contains the mean difference at all times together, but for `alpha`."""
    mirrored = {-value: count for value, count in counts.items()}
    return lower_bound(counts, alpha / 2), -lower_bound(mirrored, alpha / 2)


def lower_bound(counts: Counts, alpha: float) -> float:
    """Return a number that the mean difference is below, at any time, with probability `alpha` at most."""
    total = sum(counts.values())
    if not total:
        return -1.0
    excluded, kept = -1.0, sum(value * count for value, count in counts.items()) / total
    for _ in range(STEPS):
        middle = (excluded + kept) / 2
        if log_capital(counts, middle) >= -log(alpha):
            excluded = middle
        else:
            kept = middle
    return excluded


def log_capital(counts: Counts, mean: float) -> float:
    """Return the log of the average capital of gamblers who bet that the differences exceed `mean`.

    It falls as `mean` rises, so the means it excludes are those below a bound.
    """
    if mean <= -1:
        return inf if any(value > -1 and count for value, count in counts.items()) else 0.0
    logs = [
        sum(count * log1p(bet * ((value + 1) / (mean + 1) - 1)) for value, count in counts.items())
        for bet in BETS
    ]
    most = max(logs)
    return most + log(sum(exp(one - most) for one in logs) / len(logs))


def sample_size(
    resolution: float,
    discordance: float,
    *,
    allowed_loss: float = 0.0,
    alpha: float = ALPHA,
    power: float = POWER,
) -> int:
    """Return how many lines `interval` needs to find a loss that exceeds the allowed one by `resolution`.

    `discordance` is the share of lines that only one side gets right. The capital of the best bet grows by a
    mean and a variance a line, here with a normal distribution, and is averaged with idle ones.

    Raises:
        ValueError: a number is out of its range.

    """
    loss = allowed_loss + resolution
    if not (resolution > 0 and allowed_loss >= 0 and loss <= 1):
        raise ValueError("the resolution must be positive, and with the allowed loss at most 1")
    if not 0 <= discordance <= 1:
        raise ValueError("the discordance must be from 0 to 1")
    discordance = max(discordance, loss)
    shares = {1.0: (discordance + loss) / 2, 0.0: 1 - discordance, -1.0: (discordance - loss) / 2}
    needed = log(2 / alpha) + log(len(BETS))
    z = NormalDist().inv_cdf(power)
    return min(_lines(shares, bet, allowed_loss, needed, z) for bet in BETS)


def _lines(shares: Mapping[float, float], bet: float, null: float, needed: float, z: float) -> int:
    """Return the least n at which n g - z sqrt(n v) reaches `needed`, for growth of mean g and variance v."""
    gain: Callable[[float], float] = lambda loss: log1p(bet * ((loss + 1) / (null + 1) - 1))  # noqa: E731
    mean = sum(share * gain(loss) for loss, share in shares.items())
    if mean <= 0:
        return LONGEST
    variance = sum(share * (gain(loss) - mean) ** 2 for loss, share in shares.items())
    root = (z * sqrt(variance) + sqrt(z * z * variance + 4 * mean * needed)) / (2 * mean)
    return min(LONGEST, ceil(root * root))
