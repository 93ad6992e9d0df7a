"""How likely given continuations of a prompt are: the request and its outcome."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from worker.engine.requests.errors import InvalidRequestError
from worker.engine.requests.share import ONLY, Share


@dataclass(frozen=True, slots=True)
class ScoringRequest:
    """A prompt and its continuations, each as text or token ids; raises InvalidRequestError without any.

    A continuation is tokenized on its own and follows the prompt's tokens, so the space that parts the two
    belongs to it.
    """

    id: Hashable
    prompt: str | Sequence[int]
    continuations: Sequence[str | Sequence[int]]
    priority: int = 0  # among work that generates nothing; higher goes first
    add_special_tokens: bool = True  # to the prompt
    share: Share = ONLY

    def __post_init__(self) -> None:
        if not self.continuations or isinstance(self.continuations, str):
            raise InvalidRequestError(f"continuations is not a list with any: {self.continuations!r}")


@dataclass(frozen=True, slots=True)
class ContinuationScore:
    """The natural logarithms of the model's probabilities of a continuation's tokens, each after the last."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    is_greedy: bool  # each token is the most likely one

    @property
    def num_tokens(self) -> int:
        """Tokens of the continuation."""
        return len(self.token_ids)

    @property
    def logprob(self) -> float:
        """Of the whole continuation."""
        return sum(self.logprobs)

    @property
    def mean_logprob(self) -> float:
        """A token's share of it, so that lengths compare."""
        return self.logprob / self.num_tokens


@dataclass(frozen=True, slots=True)
class Scores:
    """The outcome of a ScoringRequest. `continuations` is empty after an error or a cancellation."""

    id: Hashable
    continuations: tuple[ContinuationScore, ...]  # in the order of the request
    num_prompt_tokens: int
    num_cached_tokens: int  # of the prompt, found in the prefix cache
    error: str | None = None
    is_cancelled: bool = False
    is_too_long: bool = False  # the error is that the model takes no prompt of this length

    def choose(self, *, by_mean: bool = False) -> int:
        """Return the index of the likeliest continuation, the first on a tie; ValueError if there is none."""
        values = [one.mean_logprob if by_mean else one.logprob for one in self.continuations]
        return values.index(max(values))
