"""Log-probabilities of one token, as a request gets them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Natural logarithms of the model's probabilities at one token, before any option of sampling."""

    chosen: float
    top: tuple[tuple[int, float], ...]  # (token id, logprob), likeliest first
