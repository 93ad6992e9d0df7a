"""Define the log-probabilities that are reported of a token, from the engine to the client."""

from dataclasses import dataclass
from typing import Any, Self

MIN_LOGPROB = -9999.0  # stands for minus infinity, which JSON cannot express


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Natural logarithm of a token's probability, and of the likeliest tokens' at its position.

    The probabilities are the model's own, before any sampling option applies.
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()  # (token id, logprob), likeliest first
    rank: int | None = None  # among all tokens, 1 for the likeliest; known of a prompt's tokens only

    @property
    def top_and_own(self) -> tuple[tuple[int, float], ...]:
        """The likeliest tokens, followed by this token unless it is one of them."""
        if any(token == self.token_id for token, _ in self.top):
            return self.top
        return (*self.top, (self.token_id, self.logprob))

    def to_json(self) -> list[Any]:
        """Return a JSON array that `from_json` reads back."""
        rank = () if self.rank is None else (self.rank,)
        return [self.token_id, finite(self.logprob), [[token, finite(one)] for token, one in self.top], *rank]

    @classmethod
    def from_json(cls, value: list[Any]) -> Self:
        """Rebuild what `to_json` wrote."""
        token_id, logprob, top, *rank = value
        return cls(token_id, logprob, tuple((token, one) for token, one in top), *rank)


Logprobs = tuple[TokenLogprob, ...]


def finite(logprob: float) -> float:
    """Return a logprob that JSON can express."""
    return max(logprob, MIN_LOGPROB)
