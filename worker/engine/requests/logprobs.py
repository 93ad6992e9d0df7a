"""Defines the log-probabilities that are reported of one token."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Natural logarithms of the model's probabilities at one token, before any sampling option applies."""

    chosen: float
    top: tuple[tuple[int, float], ...]  # (token id, logprob), likeliest first
